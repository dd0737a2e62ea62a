"""Low-rank adaptation: what is trained, loaded, merged and saved."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import config
from helpers.backbones import ARCHS, OURS
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from safetensors.torch import load_file
from torch import nn

from colonnade.backbones import CaiT, ColumnarBackbone, SimplifiedViT, XCiT
from colonnade.backbones.lora import UPDATE, merge_updates
from colonnade.inference import load
from colonnade.settings.backbone_config import set_trained_part
from colonnade.settings.reading import read_config
from colonnade.weights import load_weights
from colonnade.weights.state_dicts import WeightsError

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
    merged = build(cls).eval()
    merged.load_state_dict(merge_updates(adapted.state_dict(), rank=2))
    torch.testing.assert_close(merged(images), outputs, rtol=1e-4, atol=1e-5)
    if cls is not SimplifiedViT:  # which cannot be fused
        merged.fuse()
        torch.testing.assert_close(merged(images), outputs, rtol=1e-4, atol=1e-5)


def test_state_of_a_detector() -> None:
    """Weights without updates load as part of a model, too, and batch norms keep their statistics.
    """
    plain, adapted = build(XCiT), build(XCiT, lora={})
    nn.ModuleDict(dict(backbone=adapted)).load_state_dict({
        f'backbone.{name}': value
        for name, value in plain.state_dict().items()
    })
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


@pytest.mark.parametrize('tune, count', [
    ('all', None),
    ('last:2', 2),
    ('head', 0),
    ('lora:4', 12),
    ('lora', 12),
])
def test_trained_part(tune: str, count: int | None) -> None:
    """``--tune`` chooses the blocks with trained parameters."""
    model = read_config(config('sem_fpn')).model
    model.backbone.lora = dict(rank=2)  # replaced
    set_trained_part(model, tune)
    backbone = MODELS.build(model.backbone)
    trained = {name for name, each in backbone.named_parameters() if each.requires_grad}
    if count is None:
        assert len(trained) == len(dict(backbone.named_parameters()))
        return
    assert {name.split('.')[1] for name in trained} == {str(12 - 1 - i) for i in range(count)}
    ranks = {len(each) for name, each in backbone.named_parameters() if 'lora_A' in name}
    assert ranks == ({4 if ':' in tune else 8} if 'lora' in tune else set())


@pytest.mark.parametrize('tune, message', [
    ('first:3', "--tune must be all, last:N, head, lora or lora:RANK, got 'first:3'"),
    ('last:0', "got 'last:0'"),
    ('last:12', 'the backbone has 12 blocks; to train them all, use --tune all'),
])
def test_invalid_part(tune: str, message: str) -> None:
    model = read_config(config('sem_fpn')).model
    with pytest.raises(ValueError, match=message):
        set_trained_part(model, tune)


def test_part_of_other_backbone() -> None:
    with pytest.raises(ValueError, match="--tune needs a Colonnade backbone, got .*'ResNet'"):
        set_trained_part(ConfigDict(backbone=dict(type='ResNet')), 'head')


def test_merged_when_loaded(tmp_path: Path) -> None:
    """Predictions of a loaded model are those of the trained one, and its config has no LoRA."""
    cfg = read_config(config('sem_fpn'))
    set_trained_part(cfg.model, 'lora')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        trained = MODELS.build(cfg.model).eval()
    randomize(trained)
    classes = ('background', 'circle', 'rectangle', 'triangle')
    torch.save(
        dict(state_dict=trained.state_dict(), meta=dict(dataset_meta=dict(classes=classes))),
        tmp_path / 'trained.pth')
    model = load(cfg.copy(), tmp_path / 'trained.pth', device='cpu', fuse=False)
    assert 'lora' not in model.cfg.model.backbone and 'lora' in cfg.model.backbone
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            model.module._forward(images), trained._forward(images), rtol=1e-4, atol=1e-5)


def test_trained_weights_alone(tmp_path: Path, run_tool: Callable) -> None:
    """Files without the base model are small, and restored only with the same base model."""
    plain = build(XCiT)
    torch.save(plain.state_dict(), tmp_path / 'base.pth')
    model = nn.Module()
    model.backbone = build(XCiT, lora=dict(rank=2))
    model.head = nn.Linear(3, 2)
    load_weights(model.backbone, tmp_path / 'base.pth')
    randomize(model.backbone)
    state = model.state_dict()
    meta = dict(dataset_meta=dict(classes=('a', 'b')))
    torch.save(dict(meta=meta, state_dict=state), tmp_path / 'full.pth')
    base = ['--base', tmp_path / 'base.pth']
    small, again = tmp_path / 'small.safetensors', tmp_path / 'again.pth'
    run_tool('convert_checkpoint', tmp_path / 'full.pth', small, '--trained-only', *base)
    assert set(load_file(small)) == {key for key in state if UPDATE in key or 'head' in key}
    run_tool('convert_checkpoint', small, again, *base)
    restored = torch.load(again)
    assert restored['meta']['dataset_meta'] == dict(classes=['a', 'b'])
    assert restored['state_dict'].keys() == state.keys()
    assert all(torch.equal(restored['state_dict'][key], state[key]) for key in state)

    with pytest.raises(WeightsError, match='omits its base model: add it with'):
        load_weights(model.backbone, small)
    with pytest.raises(SystemExit, match='already omits its base model'):
        run_tool('convert_checkpoint', small, tmp_path / 'other.pth', '--trained-only', *base)
    with pytest.raises(SystemExit, match='requires --base, the weights that training started'):
        run_tool('convert_checkpoint', small, tmp_path / 'other.pth')
    torch.save(build(XCiT).apply(shift).state_dict(), tmp_path / 'base.pth')
    with pytest.raises(SystemExit, match='is not the base model of .*small.safetensors'):
        run_tool('convert_checkpoint', small, tmp_path / 'other.pth', *base)
    with pytest.raises(SystemExit, match='shares no identical tensor with .*full.pth'):
        run_tool('convert_checkpoint', tmp_path / 'full.pth', tmp_path / 'other.pth',
                 '--trained-only', *base)  # yapf: disable
    assert not (tmp_path / 'other.pth').exists()


def shift(module: nn.Module) -> None:
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        tensor.data += 1
