"""Columnar trunks as backbones, registered in mmengine's root registry."""
from .cait import CaiT
from .columnar import ColumnarBackbone
from .resmlp import ResMLP
from .xcit import XCiT

__all__ = ['CaiT', 'ColumnarBackbone', 'ResMLP', 'XCiT']
