"""Evaluation of models, test-time augmentation, probes of features, benchmarks."""
