"""Vision transformers of simplified blocks (Simplifying Transformer Blocks, arXiv 2311.01906)."""
