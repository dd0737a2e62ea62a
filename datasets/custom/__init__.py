"""Custom datasets: validation, and their settings for a config."""
