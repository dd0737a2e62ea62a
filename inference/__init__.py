"""Inference: from a config and weights to predictions, to a server, and to packages to share."""
from colonnade.runtime.images import ImageError, read_image

from .loading import load
from .model import Answer, Model
from .results import Instances, LabelMap, Result

__all__ = ['Answer', 'ImageError', 'Instances', 'LabelMap', 'Model', 'Result', 'load', 'read_image']
