"""Trained models as folders to share, which are read without running any of their code."""
