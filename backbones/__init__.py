"""Columnar trunks as backbones, registered in mmengine's root registry."""
from colonnade.weights.openmmlab import replace_loaders

from .cait import CaiT
from .columnar import ColumnarBackbone
from .resmlp import ResMLP
from .xcit import XCiT

__all__ = ['CaiT', 'ColumnarBackbone', 'ResMLP', 'XCiT']

replace_loaders()  # of mmengine: checkpoints are read without running code, see openmmlab.py
