"""What a training leaves in its work dir: checkpoints, metrics.csv, trackers, its line."""
from .configuration import recorded, settle
from .run import Run, go_on

__all__ = ['Run', 'go_on', 'recorded', 'settle']
