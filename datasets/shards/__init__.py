"""Datasets in tar files: written from the datasets of a config, and verified."""
