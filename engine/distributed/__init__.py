"""Several processes: what they must agree on, and parameters sharded over them."""
