"""Validation of datasets, before training and by ``colonnade check-dataset``."""
