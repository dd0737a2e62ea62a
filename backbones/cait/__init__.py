"""CaiT: Going deeper with Image Transformers (arXiv 2103.17239)."""
