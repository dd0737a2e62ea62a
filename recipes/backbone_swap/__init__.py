"""A trunk of ours in a config of others; behind tools/transplant.py."""
