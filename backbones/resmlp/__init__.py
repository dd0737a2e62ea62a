"""ResMLP: Feedforward networks for image classification (arXiv 2105.03404)."""
from .trunk import ResMLP

__all__ = ['ResMLP']
