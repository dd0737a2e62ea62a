"""What a training leaves in its work dir: checkpoints, metrics.csv, trackers, its line."""
from .configuration import recorded, settle
from .resume import candidates, go_on, noted

__all__ = ['candidates', 'go_on', 'noted', 'recorded', 'settle']
