"""CaiT: Going deeper with Image Transformers (arXiv 2103.17239)."""
from .backbone import CaiT

__all__ = ['CaiT']
