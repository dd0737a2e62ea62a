"""What a training leaves in its work dir: the best checkpoint, metrics.csv, trackers, its line."""
from .attaching import recorded, settle

__all__ = ['recorded', 'settle']
