"""Small backbones of every registered class, including a toy, for contract tests."""
from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import timm
import torch
from helpers import toy_backbone  # noqa: F401, registers the toy
from torch import nn

from colonnade.backbones import (BACKBONES, CaiT, ColumnarBackbone, PlainViT, ResMLP, SimplifiedViT,
                                 XCiT)
from colonnade.backbones.kernels.folding import FusibleBlock

SMALL = dict(
    embed_dim=32, depth=4, num_heads=4, patch_size=8, layer_scale_init_value=0.1, img_size=64)
ARCHS = {
    cls: {
        column: value
        for column, value in SMALL.items() if column in next(iter(cls.variants.rows.values()))
    }
    for cls in BACKBONES.values()
}
for quadratic in (CaiT, PlainViT):
    ARCHS[quadratic]['patch_size'] = 16
VARIANTS = {  # other implementations and types of blocks
    'XCiT of patch 16': partial(XCiT, ARCHS[XCiT] | dict(patch_size=16)),
    'CaiT by blocks': partial(CaiT, ARCHS[CaiT] | dict(patch_size=8), attn_block_size=17),
    'ResMLP by windows': partial(ResMLP, ARCHS[ResMLP], token_mixing='window'),
    'PlainViT of DINOv3 by windows':
    partial(
        PlainViT,
        ARCHS[PlainViT] | dict(model='vit_small_patch16_dinov3', patch_size=8),
        window_size=3,
        global_blocks=(1, )),
    'SimplifiedViT in sequence':
    partial(SimplifiedViT, ARCHS[SimplifiedViT], block='sequential', centring=True),
    'SimplifiedViT of plain blocks': partial(SimplifiedViT, ARCHS[SimplifiedViT], block='plain'),
}
MAKERS = {cls.__name__: partial(cls, arch) for cls, arch in ARCHS.items()} | VARIANTS

OURS = [cls for cls in ARCHS if cls.__module__.startswith('colonnade.')]
WITH_KERNELS = [cls for cls in OURS if isinstance(cls(ARCHS[cls]).blocks[0], FusibleBlock)]

every_backbone = pytest.mark.parametrize('make', MAKERS.values(), ids=MAKERS)
every_class = pytest.mark.parametrize('cls', ARCHS, ids=lambda cls: cls.__name__)
every_class_with_kernels = pytest.mark.parametrize(
    'cls', WITH_KERNELS, ids=lambda cls: cls.__name__)


def tiny(make: type | partial = XCiT, *args: object, **kwargs: object) -> ColumnarBackbone:
    """Build a small backbone with reproducible weights."""
    torch.manual_seed(0)
    if isinstance(make, type):
        args = args or (ARCHS[make], )
    return make(*args, **kwargs)


def randomised(module: Any) -> Any:
    """Fill a module with reproducible weights, none of which is 0 or 1."""
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def timm_model(cls: type, arch: str, **kwargs: object) -> nn.Module:
    """Build timm's module of an architecture, by timm's name if there is one."""
    row = cls.variants.rows[arch]
    if cls is XCiT:
        return timm.create_model(f'xcit_{arch}_224', num_classes=0, **kwargs)
    if cls is ResMLP:
        name = 'big_24' if arch == 'b24' else arch[1:]
        return timm.create_model(f'resmlp_{name}_224', num_classes=0, **kwargs)
    if cls is CaiT:
        columns = ('embed_dim', 'depth', 'num_heads', 'img_size')
        sizes = {key: row[key] for key in columns}
        return timm.create_model('cait_s24_384', num_classes=0, **sizes, **kwargs)
    return cls(arch).timm_module(row.get('img_size', 224))
