"""From a user's own data to a config that trains on them; behind tools/create_config.py."""
