"""Normalization of images of any number of bands for models of mmdet."""
from __future__ import annotations

from mmdet.models import DetDataPreprocessor
from mmengine.registry import MODELS

from .bands import BandNormalization


@MODELS.register_module()
class DetBandsDataPreprocessor(BandNormalization, DetDataPreprocessor):
    """mmdet's ``DetDataPreprocessor`` for any number of bands."""
