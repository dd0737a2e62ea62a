"""Columnar backbones as backbones, registered in mmengine's root registry."""
from colonnade.weights.mmengine_loaders import replace_loaders

from .cait.backbone import CaiT
from .columnar import ColumnarBackbone
from .plain_vit.backbone import PlainViT
from .registry import BACKBONES, register_backbone
from .resmlp.backbone import ResMLP
from .simplified_vit.backbone import SimplifiedViT
from .xcit.backbone import XCiT

__all__ = [
    'BACKBONES', 'CaiT', 'ColumnarBackbone', 'PlainViT', 'ResMLP', 'SimplifiedViT', 'XCiT',
    'register_backbone'
]

# mmengine then reads checkpoints without running what is in them; see weights/mmengine_loaders.py
replace_loaders()
