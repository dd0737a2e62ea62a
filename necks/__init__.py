"""Necks between columnar backbones and the heads of detectors and segmenters."""
from .columnar_pyramid import ColumnarPyramid
from .pyramid import Pyramid
from .simple_pyramid import SimplePyramid
from .vit_adapter import ViTAdapter

__all__ = ['ColumnarPyramid', 'Pyramid', 'SimplePyramid', 'ViTAdapter']
