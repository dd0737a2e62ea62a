"""Attention and mixing maps against timm's modules."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from trunks import ARCHS, tiny

from colonnade.backbones import CaiT, ResMLP, XCiT
from colonnade.backbones.attention_maps import (channel_attention, class_attention,
                                                load_class_attention, mixing_rows,
                                                query_key_magnitude)
from colonnade.weights.state_dicts import WeightsError

IMAGE = torch.rand(2, 3, 64, 64, dtype=torch.float64)  # CaiT's native grid


def classifier(cls: type) -> nn.Module:
    """timm's whole classifier with random weights."""
    torch.manual_seed(1)
    backbone = tiny(cls)
    size = backbone.settings.get('img_size', IMAGE.shape[-1])
    model = backbone.timm_module(size, num_classes=5).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.double()


def seen_by(modules: list[nn.Module], model: nn.Module) -> list[torch.Tensor]:
    """What enters the modules (those of dropout: softmax weights) while timm's model runs."""
    seen = []
    for module in modules:
        module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        model(IMAGE)
    return seen


@pytest.mark.parametrize('tokens_norm', [True, False])
@pytest.mark.parametrize('cls', [XCiT, CaiT])
def test_class_attention_is_timms(cls: type, tokens_norm: bool, tmp_path: Path) -> None:
    model = classifier(cls)
    arch = dict(ARCHS[cls])
    if cls is XCiT:
        arch['tokens_norm'] = tokens_norm
        for block in model.cls_attn_blocks:
            block.tokens_norm = tokens_norm
    torch.save(model.state_dict(), tmp_path / 'a.pth')
    layers = [block.attn for block in getattr(model, cls.class_attention_name)]
    for layer in layers:
        layer.fused_attn = False
    expected = seen_by([layer.attn_drop for layer in layers], model)
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
def test_channel_attention_is_timms(block: int) -> None:
    model, backbone = classifier(XCiT), tiny(XCiT).double().eval()
    weights = model.state_dict()
    backbone.load_state_dict({name: weights[name] for name in backbone.state_dict()})
    model.blocks[block].attn.fused_attn = False
    expected, = seen_by([model.blocks[block].attn.attn_drop], model)
    torch.testing.assert_close(channel_attention(backbone, IMAGE, block), expected)


def test_magnitudes_of_queries_and_keys() -> None:
    backbone = tiny(XCiT).double().eval()
    queries, keys = query_key_magnitude(backbone, torch.rand(2, 3, 40, 64, dtype=torch.float64))
    assert queries.shape == keys.shape == (2, 4, 5, 8)
    # each of a head's 8 channels has norm 1 along the tokens
    for x in (queries, keys):
        torch.testing.assert_close(x.square().sum(dim=(2, 3)), torch.full_like(x[..., 0, 0], 8.))


def test_mixing_rows() -> None:
    backbone = tiny(ResMLP)
    rows = mixing_rows(backbone, 1)
    assert rows.shape == (8, 8, 8, 8)
    weight = backbone.blocks[1].linear_tokens.weight
    assert torch.equal(rows[3, 2].flatten(), weight[3 * 8 + 2])
    assert not rows.requires_grad


def test_errors_say_what_is_missing(tmp_path: Path) -> None:
    backbone = tiny(XCiT)
    torch.save(backbone.state_dict(), tmp_path / 'trunk.pth')
    with pytest.raises(
            WeightsError, match=r'trunk.pth .* has no class-attention stage \(cls_token'):
        load_class_attention(backbone, tmp_path / 'trunk.pth')
    state = classifier(XCiT).state_dict()
    del state['cls_attn_blocks.1.gamma1']
    torch.save(state, tmp_path / 'part.pth')
    with pytest.raises(WeightsError, match='1 missing: cls_attn_blocks.1.gamma1'):
        load_class_attention(backbone, tmp_path / 'part.pth')
    with pytest.raises(ValueError, match='ResMLP has no class attention'):
        load_class_attention(tiny(ResMLP), tmp_path / 'part.pth')
    with pytest.raises(ValueError, match='ends with block 1: out_indices must reach it'):
        class_attention(tiny(XCiT, out_indices=(0, 1)), None, IMAGE)
    with pytest.raises(ValueError, match=r'block must be in -4 \.\.\. 3, got 4'):
        channel_attention(backbone, IMAGE, 4)
    with pytest.raises(ValueError, match='CaiT has no cross-covariance attention'):
        channel_attention(tiny(CaiT), IMAGE)
    with pytest.raises(ValueError, match='XCiT has no mixing matrices'):
        mixing_rows(backbone)
