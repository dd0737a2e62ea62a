"""Normalization of images of any number of bands for models of mmseg."""
from __future__ import annotations

from mmengine.registry import MODELS
from mmseg.models import SegDataPreProcessor

from .bands import BandNormalization


@MODELS.register_module()
class SegBandsDataPreProcessor(BandNormalization, SegDataPreProcessor):
    """mmseg's ``SegDataPreProcessor`` for any number of bands."""
