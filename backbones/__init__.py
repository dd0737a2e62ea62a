"""Columnar trunks as backbones, registered in mmengine's root registry."""
from colonnade.weights.openmmlab import replace_loaders

from .cait import CaiT
from .columnar import ColumnarBackbone
from .plain_vit import PlainViT
from .registry import TRUNKS, register_trunk
from .resmlp import ResMLP
from .simplified_vit import SimplifiedViT
from .xcit import XCiT

__all__ = [
    'TRUNKS', 'CaiT', 'ColumnarBackbone', 'PlainViT', 'ResMLP', 'SimplifiedViT', 'XCiT',
    'register_trunk'
]

# mmengine then reads checkpoints without running what is in them; see weights/openmmlab.py
replace_loaders()
