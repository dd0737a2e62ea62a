"""Plain vision transformers of timm, of one resolution from the first block to the last."""
