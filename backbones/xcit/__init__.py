"""XCiT: Cross-Covariance Image Transformers (arXiv 2106.09681)."""
from .backbone import XCiT

__all__ = ['XCiT']
