"""Columnar trunks as backbones, registered in mmengine's root registry."""
from .columnar import ColumnarBackbone
from .xcit import XCiT

__all__ = ['ColumnarBackbone', 'XCiT']
