"""The work dir of a training: checkpoints, metrics.csv, trackers and the progress line."""
from .configuration import configure_run, record_run
from .run import Run, select_resume_checkpoint

__all__ = ['Run', 'configure_run', 'record_run', 'select_resume_checkpoint']
