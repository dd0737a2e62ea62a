"""Dataset formats, and their conversion to COCO files and label maps."""
