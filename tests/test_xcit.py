"""What XCiT alone has: batch normalisation, and its table."""
from __future__ import annotations

import pytest
import torch
from test_backbones import ARCHS, tiny
from torch import nn

from colonnade.backbones import XCiT
from colonnade.necks import ColumnarPyramid

TINY = ARCHS[XCiT]


@pytest.mark.parametrize('changes, message', [
    (dict(patch_size=14), 'patch_size must be 8 or 16, got 14'),
    (dict(num_heads=5), 'multiple of num_heads, .* num_heads 5'),
    (dict(embed_dim=36), 'embed_dim must be a multiple of 8 for the stem, got 36'),
])
def test_wrong_arch(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        XCiT(TINY | changes)


@pytest.mark.parametrize('batch', [1, 2])
@torch.no_grad()
def test_what_follows_gets_images_in_the_default_order(batch: int) -> None:
    """mmcv's RoIAlign takes all others for it: strides must be the default ones."""
    backbone = tiny(XCiT).eval()
    pyramid = ColumnarPyramid(backbone.embed_dim, backbone.patch_size).eval()
    maps = backbone(torch.randn(batch, 3, 64, 48))
    for x in (*maps, *pyramid(maps)):
        assert x.stride() == torch.empty(x.shape).stride()


def test_norm_eval_keeps_running_statistics() -> None:
    backbone = tiny(XCiT, norm_eval=True).train()
    before = backbone.patch_embed.proj[0][1].running_mean.clone()
    backbone(torch.randn(2, 3, 40, 56))
    assert torch.equal(before, backbone.patch_embed.proj[0][1].running_mean)
    assert backbone.blocks[0].training
    assert not backbone.blocks[0].local_mp.bn.training


@pytest.mark.parametrize('norm_cfg, kind', [
    (None, nn.BatchNorm2d),
    (dict(type='BN'), nn.BatchNorm2d),
    (dict(type='SyncBN'), nn.SyncBatchNorm),
    (dict(type='GN', num_groups=2), nn.GroupNorm),
])
def test_norm_cfg(norm_cfg: dict | None, kind: type) -> None:
    backbone = tiny(XCiT, norm_cfg=norm_cfg)
    norms = [backbone.patch_embed.proj[i][1] for i in (0, 2, 4)]
    norms += [block.local_mp.bn for block in backbone.blocks]
    assert all(isinstance(norm, kind) and norm.eps == 1e-5 for norm in norms)
    assert {block.norm1.eps for block in backbone.blocks} == {1e-6}


@pytest.mark.parametrize('norm_cfg', [
    dict(type='BN', track_running_stats=False),
    dict(type='BN', affine=False),
    dict(type='GN', num_groups=2),
])
@torch.no_grad()
def test_norms_that_cannot_be_folded(norm_cfg: dict) -> None:
    backbone = tiny(XCiT, norm_cfg=norm_cfg).eval()
    image = torch.randn(2, 3, 40, 56)
    with torch.enable_grad():
        expected = backbone(image)[-1].detach()
    torch.testing.assert_close(backbone(image)[-1], expected)


def test_norm_cfg_can_freeze_affine() -> None:
    backbone = tiny(XCiT, norm_cfg=dict(type='BN', requires_grad=False))
    assert not backbone.blocks[0].local_mp.bn.weight.requires_grad


def test_layer_scale_is_the_archs() -> None:
    assert tiny(XCiT).blocks[0].gamma1.eq(1.).all()
    assert XCiT(TINY | dict(layer_scale_init_value=1e-5)).blocks[0].gamma3.eq(1e-5).all()
