"""Necks between a columnar backbone and a dense predictor."""
from .columnar_pyramid import ColumnarPyramid
from .pyramid import Pyramid
from .simple_pyramid import SimplePyramid

__all__ = ['ColumnarPyramid', 'Pyramid', 'SimplePyramid']
