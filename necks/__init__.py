"""Necks between a columnar trunk and a dense predictor."""
from colonnade.weights.layouts import register_layouts

from .columnar_pyramid import ColumnarPyramid
from .layouts import LAYOUTS
from .pyramid import Pyramid
from .simple_pyramid import SimplePyramid

__all__ = ['ColumnarPyramid', 'Pyramid', 'SimplePyramid']

register_layouts(*LAYOUTS)
