"""XCiT: Cross-Covariance Image Transformers (arXiv 2106.09681)."""
