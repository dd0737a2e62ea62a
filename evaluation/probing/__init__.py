"""What frozen features are worth for a user's own data; behind tools/rank_backbones.py."""
