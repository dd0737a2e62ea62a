"""Weights: files read safely, their layouts recognised, and loaded strictly."""
from .loading import load_weights
from .state_dicts import WeightsError

__all__ = ['WeightsError', 'load_weights']
