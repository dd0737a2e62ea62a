"""Contract of all backbones: sizes, modes, gradients, freezing and weights."""
from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.backbones import every_backbone, every_class, tiny
from helpers.modified_layers import pair, results
from helpers.rounding import check_all_rounding, doubled

from colonnade.backbones import BACKBONES, XCiT
from colonnade.weights import WeightsError, load_weights
from colonnade.weights.formats import FORMATS

LAYOUTS_OF = {  # backbone -> those of its files; names begin with the backbone's
    name: [layout for layout in FORMATS if layout.name.startswith(name)]
    for name in BACKBONES
}
SIZES = [(64, 64), (64, 96), (75, 101), (16, 16), (17, 40), (16, 400)]


@pytest.mark.parametrize('sizes', [SIZES, pytest.param([(512, 800)], marks=pytest.mark.slow)])
@every_backbone
@torch.no_grad()
def test_feature_maps_have_ceil_grid(make: partial, sizes: list[tuple[int, int]]) -> None:
    backbone = tiny(make).eval()
    patch = backbone.patch_size
    for height, width in sizes:
        grid = (-(-height // patch), -(-width // patch))
        maps = backbone(torch.randn(2, 3, height, width))
        assert isinstance(maps, tuple)
        assert [tuple(m.shape) for m in maps] == [(2, 32, *grid)] * 4
        assert all(m.isfinite().all() for m in maps)


@every_backbone
def test_images_of_batch_are_independent(make: partial) -> None:
    backbone, images = tiny(make).eval(), torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        together, alone = [m[1:] for m in backbone(images)], backbone(images[1:])
        check_all_rounding(together, alone, doubled(backbone)(images[1:].double()))


@every_backbone
@torch.no_grad()
def test_every_token_reaches_last_block(make: partial) -> None:
    backbone, image = tiny(make).eval(), torch.randn(1, 3, 75, 101)
    before = backbone(image)[-1]
    for y, x in ((0, 0), (74, 100), (40, 50), (74, 0)):
        changed = image.clone()
        changed[..., y, x] += 5.
        moved = (backbone(changed)[-1] - before).abs().amax(dim=1)[0]
        assert moved[y // backbone.patch_size, x // backbone.patch_size] > 1e-4, (y, x)


@every_backbone
def test_rejects_unbatched_and_small_images(make: partial) -> None:
    backbone = tiny(make)
    with pytest.raises(ValueError, match=f'at least .* got 64 x {backbone.patch_size - 1}'):
        backbone(torch.randn(1, 3, 64, backbone.patch_size - 1))
    with pytest.raises(ValueError, match=r'must have shape \(B, 3, H, W\), got \(3, 64, 64\)'):
        backbone(torch.randn(3, 64, 64))


@pytest.mark.parametrize(
    'size', [(64, 64),
             (75, 101), pytest.param((512, 800), marks=pytest.mark.slow)])
@every_backbone
def test_empty_batch(make: partial, size: tuple[int, int]) -> None:
    backbone, empty = tiny(make).eval(), torch.empty(0, 3, *size)
    shapes = [(0, *m.shape[1:]) for m in backbone(torch.randn(1, 3, *size))]
    with torch.no_grad():
        assert [tuple(m.shape) for m in backbone(empty)] == shapes
        with torch.autocast('cpu', torch.bfloat16):
            assert [tuple(m.shape) for m in backbone(empty)] == shapes
    sum(m.sum() for m in backbone(empty)).backward()
    assert all(p.grad is not None and not p.grad.any() for p in backbone.parameters())
    before = {name: value.clone() for name, value in backbone.named_buffers() if value.ndim}
    assert [tuple(m.shape) for m in backbone.train()(empty)] == shapes
    assert all(torch.equal(backbone.get_buffer(name), value) for name, value in before.items())


@pytest.mark.parametrize('with_cp', [False, True])
@every_backbone
def test_all_parameters_get_gradients(make: partial, with_cp: bool) -> None:
    backbone = tiny(make, with_cp=with_cp).train()
    with torch.no_grad():
        for parameter in backbone.parameters():  # no parameter blocks the gradient of others
            parameter.add_(torch.rand_like(parameter) * 0.01)
    sum(m.square().mean() for m in backbone(torch.randn(2, 3, 40, 56))).backward()
    assert [name for name, p in backbone.named_parameters() if p.grad is None] == []
    without = [name for name, p in backbone.named_parameters() if not p.grad.any()]
    # A bias before a softmax or normalization along the shifted dimension has no gradient.
    expected = ('conv1.bias', 'proj_l.bias')
    assert [name for name in without if not name.endswith(expected)] == []


@pytest.mark.parametrize('with_cp', [True, 2])
@every_backbone
def test_activation_checkpointing_is_exact(make: partial, with_cp: bool | int) -> None:
    plain, saving = (tiny(make, drop_path_rate=0.2, with_cp=cp) for cp in (False, with_cp))
    saving.load_state_dict(plain.state_dict())
    image = torch.randn(2, 3, 40, 56)
    results = []
    for backbone in (plain, saving):
        torch.manual_seed(1)
        maps = backbone.train()(image)
        sum(m.square().mean() for m in maps).backward()
        results.append((maps, [p.grad for p in backbone.parameters()], backbone.state_dict()))

    (maps, grads, state), (cp_maps, cp_grads, cp_state) = results
    assert all(torch.equal(a, b) for a, b in zip(maps, cp_maps, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(grads, cp_grads, strict=True))
    # Batch statistics are updated once, although blocks run twice.
    assert all(torch.equal(state[name], cp_state[name]) for name in state)


def test_with_cp_recomputes_every_nth_block() -> None:
    runs = []
    for with_cp in (False, True, 2, 3):
        backbone, count = tiny(XCiT, with_cp=with_cp).train(), []
        for index, block in enumerate(backbone.blocks):
            block.register_forward_pre_hook(lambda *_, i=index, count=count: count.append(i))
        sum(m.sum() for m in backbone(torch.rand(1, 3, 40, 56))).backward()
        runs.append(sorted(count[4:]))  # after the four calls of the forward pass
    assert runs == [[], [0, 1, 2, 3], [0, 2], [0, 3]]


@pytest.mark.parametrize('with_cp', [False, True])
@every_backbone
def test_backward_twice(make: partial, with_cp: bool) -> None:
    backbone = tiny(make, with_cp=with_cp).train()
    loss = sum(m.square().mean() for m in backbone(torch.randn(2, 3, 40, 56)))
    once, twice = (
        torch.autograd.grad(loss, list(backbone.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize('frozen_stages', [0, 2, 4])
@every_backbone
def test_frozen_stages_survive_train(make: partial, frozen_stages: int) -> None:
    backbone = tiny(make, frozen_stages=frozen_stages, drop_path_rate=0.1)
    tail = backbone.tail_names if frozen_stages == 4 else ()
    frozen = (*backbone.stem_names, *(f'blocks.{i}.' for i in range(frozen_stages)), *tail)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    optimizer = torch.optim.SGD((p for p in backbone.parameters() if p.requires_grad), lr=1.) \
        if frozen_stages < 4 else None

    backbone.eval().train()
    maps = backbone(torch.randn(2, 3, 40, 56))
    if optimizer:
        maps[-1].square().mean().backward()
        optimizer.step()

    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad != name.startswith(frozen), name
    for name, module in backbone.named_modules():
        if name and f'{name}.'.startswith(frozen):
            assert not module.training, name
    after = backbone.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any(name.startswith(frozen) for name in changed)
    assert bool(changed) == (frozen_stages < 4)


@pytest.mark.parametrize('training', [False, True])
@every_class
def test_feature_maps_and_gradients_equal_timm(cls: type, training: bool) -> None:
    ours, theirs = pair(cls)
    torch.testing.assert_close(
        *(results(model, training=training) for model in (ours, theirs)), rtol=1e-9, atol=1e-12)


@every_class
def test_strict_loading(cls: type, tmp_path: Path) -> None:
    ours = tiny(cls)
    theirs = {**ours.build_timm_module(64, 5).state_dict(), **ours.state_dict()}
    for state in (ours.state_dict(), theirs):
        fitting = [backbone for backbone, layouts in LAYOUTS_OF.items()
                   if any(layout.matches(state) for layout in layouts)]  # yapf: disable
        assert fitting == [cls.__name__]
        torch.save(state, tmp_path / 'a.pth')
        backbone = tiny(cls)
        for parameter in backbone.parameters():
            parameter.data.zero_()
        load_weights(backbone, tmp_path / 'a.pth')
        assert all(torch.equal(value, state[key]) for key, value in backbone.state_dict().items())
        key = next(key for key in state if key.startswith('blocks.1.norm'))
        missing = {other: value for other, value in state.items() if other != key}
        for spoilt in (missing, {**state, key: state[key][..., :3]},
                       {**state, 'blocks.1.other': state[key]}):  # yapf: disable
            torch.save(spoilt, tmp_path / 'b.pth')
            with pytest.raises(WeightsError, match='blocks.1'):
                load_weights(backbone, tmp_path / 'b.pth')


@every_backbone
def test_half_precision(make: partial) -> None:
    backbone, image = tiny(make).eval(), torch.randn(2, 3, 60, 84)
    exact = [m.detach() for m in backbone(image)]
    with torch.autocast('cpu', torch.bfloat16):
        mixed = backbone(image)
    sum(m.float().square().mean() for m in mixed).backward()
    assert all(p.grad.isfinite().all() for p in backbone.parameters())
    with torch.no_grad():
        half = backbone.bfloat16()(image.bfloat16())
    for maps in (mixed, half):
        for a, b in zip(maps, exact, strict=True):
            assert (a.detach() - b).abs().max() < 0.06 * b.abs().max()
