"""Attention and mixing maps, compared with timm's modules."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.backbones import ARCHS, VARIANTS, tiny
from torch import nn

from colonnade.backbones import CaiT, ColumnarBackbone, PlainViT, ResMLP, SimplifiedViT, XCiT
from colonnade.backbones.attention_maps import (channel_attention, class_attention,
                                                has_token_attention, load_class_attention,
                                                mixing_rows, query_key_magnitude, token_attention)
from colonnade.weights.state_dicts import WeightsError

IMAGE = torch.rand(2, 3, 64, 64, dtype=torch.float64)  # CaiT's native grid


def build_classifier(cls: type) -> nn.Module:
    """Return timm's full classifier with random weights."""
    torch.manual_seed(1)
    backbone = tiny(cls)
    size = backbone.settings.get('img_size', IMAGE.shape[-1])
    model = backbone.build_timm_module(size, num_classes=5).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.double()


def record_inputs(modules: list[nn.Module], model: nn.Module) -> list[torch.Tensor]:
    """Return the inputs of modules during a forward pass; those of dropout are softmax weights."""
    inputs = []
    for module in modules:
        module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(IMAGE)
    return inputs


@pytest.mark.parametrize('tokens_norm', [True, False])
@pytest.mark.parametrize('cls', [XCiT, CaiT])
def test_class_attention_matches_timm(cls: type, tokens_norm: bool, tmp_path: Path) -> None:
    model = build_classifier(cls)
    arch = dict(ARCHS[cls])
    if cls is XCiT:
        arch['tokens_norm'] = tokens_norm
        for block in model.cls_attn_blocks:
            block.tokens_norm = tokens_norm
    torch.save(model.state_dict(), tmp_path / 'a.pth')
    layers = [block.attn for block in getattr(model, cls.class_attention_name)]
    for layer in layers:
        layer.fused_attn = False
    expected = record_inputs([layer.attn_drop for layer in layers], model)
    backbone = cls(arch, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth')))
    backbone.init_weights()
    backbone.double()

    stage = load_class_attention(backbone, tmp_path / 'a.pth')
    found = class_attention(backbone.eval(), stage, IMAGE)

    assert len(found) == 2
    for got, weights in zip(found, expected, strict=True):
        assert got.maps.shape[-2:] == (64 // backbone.patch_size, ) * 2
        joined = torch.cat([got.to_itself[..., None], got.maps.flatten(2)], dim=-1)
        torch.testing.assert_close(joined, weights[:, :, 0])


@pytest.mark.parametrize('block', [0, 2, -1])
def test_channel_attention_matches_timm(block: int) -> None:
    model, backbone = build_classifier(XCiT), tiny(XCiT).double().eval()
    weights = model.state_dict()
    backbone.load_state_dict({name: weights[name] for name in backbone.state_dict()})
    model.blocks[block].attn.fused_attn = False
    expected, = record_inputs([model.blocks[block].attn.attn_drop], model)
    torch.testing.assert_close(channel_attention(backbone, IMAGE, block), expected)


def test_query_key_magnitudes_match_timm() -> None:
    model, backbone = build_pair(tiny(XCiT))
    qkv = []
    model.blocks[2].attn.qkv.register_forward_hook(lambda _, __, out: qkv.append(out))
    with torch.no_grad():
        model(IMAGE)
    queries, keys, _ = qkv[0].unflatten(2, (3, 4, -1)).unbind(2)  # (B, N, h, d)
    for got, x in zip(query_key_magnitude(backbone, IMAGE, 2), (queries, keys), strict=True):
        expected = nn.functional.normalize(x, dim=1).norm(dim=3).transpose(1, 2)
        torch.testing.assert_close(got.flatten(2), expected)


def build_pair(backbone: ColumnarBackbone) -> tuple[nn.Module, ColumnarBackbone]:
    """Return timm's module and the backbone with its weights."""
    model = backbone.build_timm_module(IMAGE.shape[-1]).eval().double()
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    weights = model.state_dict()
    backbone.load_state_dict({name: weights[name] for name in backbone.state_dict()})
    return model, backbone.double().eval()


ROPE = dict(ARCHS[PlainViT], model='vit_small_patch16_dinov3', patch_size=8)


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('cls, arch, layer', [
    (PlainViT, ARCHS[PlainViT], 'attn_drop'),
    (PlainViT, ROPE, 'attn_drop'),
    (CaiT, ARCHS[CaiT], 'proj_w'),
], ids=['PlainViT', 'DINOv3', 'CaiT'])  # yapf: disable
def test_token_attention_matches_timm(cls: type, arch: dict, layer: str, fused: bool) -> None:
    model, backbone = build_pair(tiny(cls, arch))
    attention = model.blocks[1].attn
    attention.fused_attn = False
    expected, = record_inputs([getattr(attention, layer)], model)
    if cls is CaiT:
        expected = expected.permute(0, 3, 1, 2)  # from (B, N, N, heads)
    if fused:
        backbone.fuse()
    side = 64 // backbone.patch_size
    prefix = expected.shape[-1] - side**2
    for token, number in {(1, 2): prefix + side + 2, 0: 0}.items():
        if token == 0 and not prefix:
            continue
        found = token_attention(backbone, IMAGE, token, 1)
        assert found.maps.shape == (2, 4, side, side)
        joined = torch.cat([found.to_prefix, found.maps.flatten(2)], dim=-1)
        torch.testing.assert_close(joined, expected[:, :, number])
        torch.testing.assert_close(joined.sum(-1), torch.ones_like(joined[..., 0]))


def test_token_attention_matches_definition() -> None:
    """The definition is softmax(q k^T / sqrt(d))."""
    for block in ('parallel', 'sequential', 'plain'):
        backbone = tiny(SimplifiedViT, ARCHS[SimplifiedViT], block=block).double().eval()
        layer = backbone.blocks[3].attn
        nn.init.normal_(layer.qk.weight)
        x, = record_inputs([layer], backbone)
        query, key = layer.qk(x).unflatten(2, (2, 4, 8)).unbind(2)  # (B, N, h, d)
        expected = torch.einsum('bhd,bnhd->bhn', query[:, 5], key).div(8**0.5).softmax(-1)
        torch.testing.assert_close(
            token_attention(backbone, IMAGE, (0, 5)).maps.flatten(2), expected)


def test_token_attention_in_windows() -> None:
    backbone = tiny(VARIANTS['PlainViT of DINOv3 by windows']).double().eval()
    found = token_attention(backbone, IMAGE, (1, 4), 0)
    layer = backbone.blocks[0].attn
    assert layer.window_size == 3
    layer.window_size = None
    every = token_attention(backbone, IMAGE, (1, 4), 0)
    visible = torch.zeros(8, 8)
    visible[:3, 3:6] = 1
    kept = every.maps * visible
    total = (kept.sum((2, 3)) + every.to_prefix.sum(2))[..., None, None]
    torch.testing.assert_close(found.maps, kept / total)
    torch.testing.assert_close(
        found.maps.sum((2, 3)) + found.to_prefix.sum(2), torch.ones_like(total[..., 0, 0]))


def test_default_token() -> None:
    """It is the class token, or the middle of the grid."""
    vit, cait = tiny(PlainViT).double().eval(), tiny(CaiT).double().eval()
    for backbone, token in ((vit, 0), (cait, (2, 2))):
        default, chosen = (token_attention(backbone, IMAGE, t) for t in (None, token))
        assert torch.equal(default.maps, chosen.maps)
    with pytest.raises(ValueError, match='token must be within 4 rows and 4 columns, got .0, 4.'):
        token_attention(cait, IMAGE, (0, 4))
    with pytest.raises(ValueError, match='the backbone has no prefix tokens, got token 0'):
        token_attention(cait, IMAGE, 0)
    assert not has_token_attention(tiny(XCiT))
    with pytest.raises(ValueError, match='has no known attention between tokens'):
        token_attention(tiny(XCiT), IMAGE)


def test_mixing_rows() -> None:
    backbone = tiny(ResMLP)
    rows = mixing_rows(backbone, 1)
    assert rows.shape == (8, 8, 8, 8)
    weight = backbone.blocks[1].linear_tokens.weight
    assert torch.equal(rows[3, 2].flatten(), weight[3 * 8 + 2])
    assert not rows.requires_grad


def test_invalid_arguments(tmp_path: Path) -> None:
    backbone = tiny(XCiT)
    torch.save(backbone.state_dict(), tmp_path / 'backbone.pth')
    with pytest.raises(
            WeightsError, match=r'backbone.pth .* has no class-attention stage \(cls_token'):
        load_class_attention(backbone, tmp_path / 'backbone.pth')
    state = build_classifier(XCiT).state_dict()
    del state['cls_attn_blocks.1.gamma1']
    torch.save(state, tmp_path / 'part.pth')
    with pytest.raises(WeightsError, match='1 missing: cls_attn_blocks.1.gamma1'):
        load_class_attention(backbone, tmp_path / 'part.pth')
    with pytest.raises(ValueError, match='ResMLP has no class attention'):
        load_class_attention(tiny(ResMLP), tmp_path / 'part.pth')
    with pytest.raises(ValueError, match='ends with block 1: add -1 to out_indices'):
        class_attention(tiny(XCiT, out_indices=(0, 1)), None, IMAGE)
    with pytest.raises(ValueError, match=r'block must be between -4 and 3, got 4'):
        channel_attention(backbone, IMAGE, 4)
    with pytest.raises(ValueError, match='CaiT has no cross-covariance attention'):
        channel_attention(tiny(CaiT), IMAGE)
    with pytest.raises(ValueError, match='XCiT has no mixing matrices'):
        mixing_rows(backbone)
