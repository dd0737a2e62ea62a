"""CaiT: Going deeper with Image Transformers (arXiv 2103.17239)."""
from .trunk import CaiT

__all__ = ['CaiT']
