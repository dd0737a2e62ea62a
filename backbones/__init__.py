"""Columnar trunks as backbones, registered in mmengine's root registry."""
from .cait import CaiT
from .columnar import ColumnarBackbone
from .openmmlab import replace_loaders
from .resmlp import ResMLP
from .xcit import XCiT

__all__ = ['CaiT', 'ColumnarBackbone', 'ResMLP', 'XCiT']

replace_loaders()  # of mmengine: checkpoints are read without running code, see openmmlab.py
