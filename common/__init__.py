"""What several rooms share and what imports none of them."""
