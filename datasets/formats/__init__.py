"""Data sets of other forms, read and converted to COCO files and label maps."""
