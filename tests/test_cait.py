"""CaiT: talking heads in blocks, and positions of other grids."""
from __future__ import annotations

import logging
from pathlib import Path

import pytest
import timm
import torch
from helpers.backbones import ARCHS, tiny
from helpers.rounding import check_all_rounding, doubled
from mmengine.runner import load_checkpoint
from timm.models.cait import TalkingHeadAttn
from torch import Tensor, nn

from colonnade.backbones import CaiT, position_embedding
from colonnade.backbones.cait import talking_heads
from colonnade.backbones.cait.talking_heads import MIB, BoundedTalkingHeadAttn
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.kernels.resampling import resample_positions
from colonnade.weights.loading import load_weights, plan_loading

TOKENS, HEADS = 50, 4


def pair() -> tuple[TalkingHeadAttn, BoundedTalkingHeadAttn, Tensor]:
    """Build timm's attention and ours with the same weights, and tokens."""
    torch.manual_seed(0)
    theirs = TalkingHeadAttn(32, HEADS, qkv_bias=True)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = BoundedTalkingHeadAttn(32, HEADS, qkv_bias=True)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours, torch.randn(2, TOKENS, 32)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('block_size', [1, 7, 25, 49, 50, 1000, None])
def test_talking_heads_equal_timm(block_size: int | None, training: bool) -> None:
    theirs, ours, x = pair()
    ours.block_size = block_size
    results = []
    for attention in (ours, theirs, doubled(theirs)):
        with torch.set_grad_enabled(training):
            given = x.to(attention.proj.weight, copy=True).requires_grad_(training)
            out = attention(given)
            results.append([out])
            if training:
                (out * torch.linspace(-1, 1, 32)).sum().backward()
                results[-1] += [given.grad, *(p.grad for p in attention.parameters())]
    check_all_rounding(*results)


@pytest.mark.parametrize('budget, block_size', [
    (2 * HEADS * TOKENS * 4 * 10 / MIB, 10),
    (1e-9, 1),
    (100., TOKENS),
    (None, TOKENS),
])
def test_budget_sets_block_size(budget: float | None, block_size: int,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours, x = pair()
    ours.budget = budget
    seen = []
    mix = talking_heads.mix_heads
    monkeypatch.setattr(talking_heads, 'mix_heads',
                        lambda maps, *args: seen.append(maps.shape[2]) or mix(maps, *args))
    with torch.no_grad():
        ours(x)
    assert seen[0] == block_size
    assert sum(seen) == 2 * TOKENS


def test_no_tensor_is_quadratic_in_tokens() -> None:
    _, ours, x = pair()
    ours.block_size = 5
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t,
                                                  lambda t: t):
        ours(x.requires_grad_()).sum().backward()
    assert sizes
    assert max(sizes) < 2 * HEADS * TOKENS**2


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, None])
def test_talking_heads_in_half_precision(dtype: torch.dtype | None) -> None:
    theirs, ours, x = pair()
    exact = theirs(x)
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16, enabled=dtype is None):
        expected, got = (
            attention.to(dtype)(x.to(dtype)) if dtype else attention(x)
            for attention in (theirs, ours))
    assert got.dtype == (dtype or expected.dtype)
    assert (got - exact).abs().max() <= 1.5 * (expected - exact).abs().max()


def test_training_after_inference_mode() -> None:
    backbone, image = tiny(CaiT), torch.randn(1, 3, 32, 96)
    backbone.pos_embed.requires_grad_(False)
    with torch.inference_mode():
        backbone(image)
    backbone(image)[-1].sum().backward()
    assert backbone.blocks[0].gamma_1.grad.any()


def test_resized_positions_keep_ramp() -> None:
    ramp = torch.linspace(0, 1, 14)[:, None].expand(14, 14).reshape(1, 196, 1)
    for grid in ((28, 20), (7, 9)):
        got = resample_positions(ramp, (14, 14), grid).view(grid)
        assert (got - got[:, :1]).abs().max() < 1e-6
        assert (got[1:] > got[:-1]).all()
        assert got[grid[0] // 2].mean().item() == pytest.approx(0.5, abs=0.1)


def published(img_size: int) -> dict[str, Tensor]:
    """Write a tiny CaiT's file for another size of image."""
    backbone = tiny(CaiT, ARCHS[CaiT] | dict(img_size=img_size))
    state = backbone._build(4, drop_path_rate=0., num_classes=7).state_dict()
    return {key: torch.rand_like(value) for key, value in state.items()}


def test_resizes_and_reports_positions_of_other_grid(tmp_path: Path) -> None:
    state = published(96)
    torch.save({'model': {
        f'module.{key}': value
        for key, value in state.items()
    }}, tmp_path / 'a.pth')
    plan = load_weights(backbone := tiny(CaiT), tmp_path / 'a.pth')
    assert plan.resized == ('pos_embed', )
    assert '1 resized (pos_embed)' in str(plan)
    expected = resample_positions(state['pos_embed'], (6, 6), (4, 4))
    assert torch.equal(backbone.pos_embed, expected)
    load_weights(same := tiny(CaiT, img_size=96), tmp_path / 'a.pth')
    assert torch.equal(same.pos_embed, state['pos_embed'])


@pytest.mark.parametrize('arch, timms', [
    ('xxs24_224', 'cait_xxs24_224'),
    ('xxs36_224', 'cait_xxs36_224'),
    ('s24_224', 'cait_s24_224'),
    ('xxs24', 'cait_xxs24_384'),
    ('m48', 'cait_m48_448'),
])
def test_published_files_load_without_resizing(arch: str, timms: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr(position_embedding, 'print_log', lambda text, **_: said.append(text))
    with on_meta_device():
        state = timm.create_model(timms).state_dict()
        backbone = CaiT(arch)
    assert backbone.describe(state) == backbone.describe() == f'CaiT {arch}'
    assert plan_loading(backbone, state, 'a.pth').resized == ()
    assert said == []


@pytest.mark.parametrize('entrance', ['ours', 'whole model', 'load_state_dict'])
def test_warns_of_resized_positions(entrance: str, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CaiT.variants.rows, 'tiny_96',
                        ARCHS[CaiT] | dict(img_size=96, patch_size=16, drop_path_rate=0.))
    said = []
    monkeypatch.setattr(position_embedding, 'print_log', lambda text, *, level, **_: said.append(
        (level, text)))
    other, backbone = tiny(CaiT, img_size=96), tiny(CaiT)
    if entrance == 'load_state_dict':
        backbone.load_state_dict(other.state_dict())
    elif entrance == 'ours':
        torch.save(other.state_dict(), tmp_path / 'a.pth')
        load_weights(backbone, tmp_path / 'a.pth')
    else:
        model = nn.ModuleDict(dict(backbone=other))
        torch.save(dict(state_dict=model.state_dict()), tmp_path / 'a.pth')
        load_checkpoint(nn.ModuleDict(dict(backbone=backbone)), str(tmp_path / 'a.pth'))
    (level, text), = said
    assert level == logging.WARNING
    assert 'of a 6 x 6 grid (96 px images) is resized to 4 x 4 (64 px images)' in text
    assert text.endswith("set img_size=96 or arch='tiny_96'")
    said.clear()
    tiny(CaiT, img_size=96).load_state_dict(other.state_dict())
    assert said == []


@pytest.mark.parametrize('shape', [(1, 15, 32), (1, 36, 31), (36, 32)])
def test_rejects_positions_of_non_square_grid(shape: tuple[int, ...]) -> None:
    state = published(64) | dict(pos_embed=torch.zeros(shape))
    with pytest.raises(ValueError, match=r'of another shape: pos_embed is .* \(1, 16, 32\) in the'):
        plan_loading(tiny(CaiT), state, 'a.pth')


def test_default_drop_rates_are_those_of_paper() -> None:
    with on_meta_device():
        assert CaiT('s36').blocks[0].drop_path.drop_prob == 0.2
        assert CaiT('s36', drop_path_rate=0.).blocks[0].drop_path.__class__ is nn.Identity
