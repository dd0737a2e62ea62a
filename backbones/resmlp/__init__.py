"""ResMLP: Feedforward networks for image classification (arXiv 2105.03404)."""
from .backbone import ResMLP

__all__ = ['ResMLP']
