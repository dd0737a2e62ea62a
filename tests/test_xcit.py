"""What XCiT alone has: batch normalisation, and its table."""
from __future__ import annotations

import pytest
import torch
from test_backbones import ARCHS, tiny
from torch import nn
from torch._prims_common import suggest_memory_format

from colonnade.backbones import XCiT, xcit

TINY = ARCHS[XCiT]


@pytest.mark.parametrize('changes, message', [
    (dict(patch_size=14), 'patch_size must be 8 or 16, got 14'),
    (dict(num_heads=5), 'multiple of num_heads, .* num_heads 5'),
    (dict(embed_dim=36), 'embed_dim must be a multiple of 8 for the stem, got 36'),
])
def test_wrong_arch(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        XCiT(TINY | changes)


@torch.no_grad()
def test_maps_of_one_image_need_no_copies_behind_the_trunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides of one image are ambiguous, and convolutions copy what isn't told channels-last."""
    backbone, image = tiny(XCiT).eval(), torch.randn(1, 3, 64, 48)
    for pixels in (2**18, 2**10):  # the stem at once and in strips
        monkeypatch.setattr(xcit, 'STEM_PIXELS', pixels)
        for x in backbone(image):
            assert suggest_memory_format(x) is torch.channels_last


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
