"""Inference: from a config and weights to predictions, to a server, and to packages to share.

Importing it takes no torch.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from colonnade.runtime.images import ImageError, read_image

    from .loading import load
    from .model import Answer, Model
    from .results import Instances, LabelMap, Result

__all__ = ['Answer', 'ImageError', 'Instances', 'LabelMap', 'Model', 'Result', 'load', 'read_image']

__getattr__ = lazy_exports(
    __name__, {
        'Answer': '.model',
        'ImageError': 'colonnade.runtime.images',
        'Instances': '.results',
        'LabelMap': '.results',
        'Model': '.model',
        'Result': '.results',
        'load': '.loading',
        'read_image': 'colonnade.runtime.images',
    })
