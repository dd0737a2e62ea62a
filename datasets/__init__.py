"""Datasets: annotation formats, validation, conversion, splits, shards."""
