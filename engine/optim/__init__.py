"""Optimization: batch sizes, layer-wise learning rates, parameter groups."""
