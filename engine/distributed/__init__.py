"""Consistency of processes, and parameters that are sharded over them."""
