"""Low-rank adaptation: what is trained, loaded, merged and saved."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.backbones import ARCHS, OURS
from torch import nn

from colonnade.backbones import CaiT, ColumnarBackbone, XCiT
from colonnade.backbones.lora import UPDATE, merge_lora
from colonnade.weights import load_weights

pytest.importorskip('peft')


def build(cls: type[ColumnarBackbone], **arguments: Any) -> ColumnarBackbone:
    torch.manual_seed(0)
    return cls(ARCHS[cls], **arguments)


def randomize(backbone: nn.Module) -> None:
    """Give updates, which start at 0, random values."""
    for name, parameter in backbone.named_parameters():
        if UPDATE in name:
            nn.init.normal_(parameter, std=0.1)


@pytest.mark.parametrize('cls', OURS)
def test_load_train_and_merge(cls: type[ColumnarBackbone], tmp_path: Path) -> None:
    """An untrained update changes nothing, only updates get gradients, and merging keeps outputs.
    """
    plain = build(cls).eval()
    torch.save(plain.state_dict(), tmp_path / 'plain.pth')
    adapted = build(cls, lora=dict(rank=2))
    load_weights(adapted, tmp_path / 'plain.pth')
    images = torch.randn(2, 3, 75, 101)
    torch.testing.assert_close(adapted.eval()(images), plain(images))

    randomize(adapted)
    sum(map_.square().mean() for map_ in adapted.train()(images)).backward()
    trained = {name for name, each in adapted.named_parameters() if each.grad is not None}
    assert trained == {name for name, _ in adapted.named_parameters() if UPDATE in name}
    assert len(trained) >= 4 * len(adapted.blocks)

    outputs = adapted.eval()(images)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(outputs, plain(images), strict=True))
    torch.save(adapted.state_dict(), tmp_path / 'adapted.pth')
    again = build(cls, lora=dict(rank=2)).eval()
    load_weights(again, tmp_path / 'adapted.pth')
    torch.testing.assert_close(again(images), outputs)
    assert merge_lora(adapted) and not merge_lora(adapted)
    assert adapted.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(adapted(images), outputs, rtol=1e-4, atol=1e-5)


def test_state_of_a_detector() -> None:
    """Weights without updates load as part of a model, too, and batch norms keep their statistics.
    """
    plain, adapted = build(XCiT), build(XCiT, lora={})
    nn.ModuleDict(dict(backbone=adapted)).load_state_dict(
        {f'backbone.{name}': value for name, value in plain.state_dict().items()})
    state = {name: value.clone() for name, value in adapted.state_dict().items()}
    adapted.train()(torch.randn(2, 3, 64, 64))
    torch.testing.assert_close(adapted.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize('arguments, message', [
    (dict(lora=dict(rank=0)), 'lora.rank must be a positive integer, got 0'),
    (dict(lora=dict(dropout=1)), r'lora.dropout must be in \[0, 1\), got 1'),
    (dict(lora={}, frozen_stages=1), 'frozen_stages has no effect with lora'),
])  # yapf: disable
def test_invalid_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(CaiT, **arguments)
