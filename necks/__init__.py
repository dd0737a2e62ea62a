"""Necks between columnar backbones and the heads of detectors and segmenters."""
from .columnar_pyramid import ColumnarPyramid
from .pyramid import Pyramid
from .simple_pyramid import SimplePyramid

__all__ = ['ColumnarPyramid', 'Pyramid', 'SimplePyramid']
