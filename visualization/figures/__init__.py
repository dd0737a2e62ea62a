"""Figures of what a model attends to, its features, and what its predictions depend on."""
from ..options import VisualizationOptions
from .layout import figure_to_bytes
from .methods import available_methods, visualize, visualize_batch

__all__ = [
    'VisualizationOptions', 'available_methods', 'figure_to_bytes', 'visualize', 'visualize_batch'
]
