"""Necks between a columnar trunk and a dense predictor."""
from .columnar_pyramid import ColumnarPyramid

__all__ = ['ColumnarPyramid']
