"""What a training leaves in its work dir: checkpoints, metrics.csv, trackers, its line."""
from .attaching import recorded, settle
from .newest import candidates, go_on, noted

__all__ = ['candidates', 'go_on', 'noted', 'recorded', 'settle']
