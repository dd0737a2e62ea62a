"""A backbone of ours in a config of others; behind tools/swap_backbone.py."""
