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
    from .results import Instances, LabelMap, PanopticMap, Result

__all__ = [
    'ImageError', 'Instances', 'LabelMap', 'Model', 'PanopticMap', 'Prediction', 'Result', 'load',
    'read_image'
]

RUNTIME = 'colonnade.runtime.images'
__getattr__ = lazy_exports(
    __name__,
    dict.fromkeys(('ImageError', 'read_image'), RUNTIME)
    | dict.fromkeys(('Instances', 'LabelMap', 'PanopticMap', 'Result'), '.results')
    | dict.fromkeys(('Model', 'Prediction'), '.model') | dict(load='.loading'))
