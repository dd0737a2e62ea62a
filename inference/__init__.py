"""Inference: prediction, an HTTP server, and packages of trained models to share.

Importing it does not import torch.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from colonnade.runtime.images import ImageError, read_image

    from .loading import load
    from .model import Model, Prediction
    from .results import Instances, LabelMap, Result

__all__ = [
    'Prediction', 'ImageError', 'Instances', 'LabelMap', 'Model', 'Result', 'load', 'read_image'
]

__getattr__ = lazy_exports(
    __name__, {
        'Prediction': '.model',
        'ImageError': 'colonnade.runtime.images',
        'Instances': '.results',
        'LabelMap': '.results',
        'Model': '.model',
        'Result': '.results',
        'load': '.loading',
        'read_image': 'colonnade.runtime.images',
    })
