"""The contract that every backbone honours, over backbones, sizes and modes."""
from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.backbones import (every_backbone, every_class, every_class_with_kernels, timm_model,
                               tiny)
from helpers.modified_layers import pair, results
from helpers.rounding import check_all_rounding, doubled
from torch import nn

from colonnade.backbones import BACKBONES, CaiT, ResMLP, XCiT
from colonnade.weights import WeightsError, load_weights
from colonnade.weights.layouts import LAYOUTS

LAYOUTS_OF = {  # backbone -> those of its files; names begin with the backbone's
    name: [layout for layout in LAYOUTS if layout.name.startswith(name)]
    for name in BACKBONES
}
SIZES = [(64, 64), (64, 96), (75, 101), (16, 16), (17, 40), (16, 400)]


@pytest.mark.parametrize('sizes', [SIZES, pytest.param([(512, 800)], marks=pytest.mark.slow)])
@every_backbone
@torch.no_grad()
def test_maps_have_the_ceil_grid(make: partial, sizes: list[tuple[int, int]]) -> None:
    backbone = tiny(make).eval()
    patch = backbone.patch_size
    for height, width in sizes:
        grid = (-(-height // patch), -(-width // patch))
        maps = backbone(torch.randn(2, 3, height, width))
        assert isinstance(maps, tuple)
        assert [tuple(m.shape) for m in maps] == [(2, 32, *grid)] * 4
        assert all(m.isfinite().all() for m in maps)


@every_backbone
def test_images_of_a_batch_do_not_see_each_other(make: partial) -> None:
    backbone, images = tiny(make).eval(), torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        together, alone = [m[1:] for m in backbone(images)], backbone(images[1:])
        check_all_rounding(together, alone, doubled(backbone)(images[1:].double()))


@every_backbone
@torch.no_grad()
def test_every_token_reaches_every_block_after(make: partial) -> None:
    """Nothing of an image is lost on the way, at no size: a change anywhere is seen."""
    backbone, image = tiny(make).eval(), torch.randn(1, 3, 75, 101)
    before = backbone(image)[-1]
    for y, x in ((0, 0), (74, 100), (40, 50), (74, 0)):
        changed = image.clone()
        changed[..., y, x] += 5.
        moved = (backbone(changed)[-1] - before).abs().amax(dim=1)[0]
        assert moved[y // backbone.patch_size, x // backbone.patch_size] > 1e-4, (y, x)


@pytest.mark.parametrize('cls, arch, size', [
    (XCiT, 'nano_12_p16', (64, 96)),
    (XCiT, 'nano_12_p16', (75, 101)),
    (XCiT, 'tiny_24_p16', (75, 101)),
    (XCiT, 'nano_12_p8', (64, 96)),
    (ResMLP, 's12', (224, 224)),
    pytest.param(ResMLP, 'b24', (224, 224), marks=pytest.mark.slow),
    (CaiT, 'xxs24', (384, 384)),
    pytest.param(CaiT, 'xs36', (384, 384), marks=pytest.mark.slow),
])
def test_maps_equal_timms_intermediates(cls: type, arch: str, size: tuple[int, int]) -> None:
    """The widest is cut to eight blocks."""
    torch.manual_seed(0)
    widest = arch == 'b24'
    ours = cls({**cls.variants.rows[arch], 'depth': 8} if widest else arch).eval()
    theirs = (ours.timm_module(size[0]) if widest else timm_model(cls, arch)).eval()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    for name, parameter in theirs.named_parameters():
        if 'gamma' in name or '.ls' in name:  # so that blocks count
            nn.init.uniform_(parameter, 0.5, 1.)
    weights = theirs.state_dict()
    ours.load_state_dict({name: weights[name] for name in ours.state_dict()})
    image = torch.randn(1, 3, *size)

    with torch.no_grad():
        plain, exact = (model.forward_intermediates(
            given, indices=list(ours.out_indices), intermediates_only=True)
                        for model, given in ((theirs, image), (doubled(theirs), image.double())))
        check_all_rounding(ours(image), plain, exact)


@every_backbone
def test_image_smaller_than_a_patch(make: partial) -> None:
    backbone = tiny(make)
    with pytest.raises(ValueError, match=f'at least .* got 64 x {backbone.patch_size - 1}'):
        backbone(torch.randn(1, 3, 64, backbone.patch_size - 1))


@pytest.mark.parametrize(
    'size', [(64, 64),
             (75, 101), pytest.param((512, 800), marks=pytest.mark.slow)])
@every_backbone
def test_an_empty_batch_gives_empty_maps(make: partial, size: tuple[int, int]) -> None:
    """And gradients of zero; statistics stay as they are."""
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
def test_every_parameter_gets_a_gradient(make: partial, with_cp: bool) -> None:
    backbone = tiny(make, with_cp=with_cp).train()
    with torch.no_grad():
        for parameter in backbone.parameters():  # none starts where it cuts others off
            parameter.add_(torch.rand_like(parameter) * 0.01)
    sum(m.square().mean() for m in backbone(torch.randn(2, 3, 40, 56))).backward()
    assert [name for name, p in backbone.named_parameters() if p.grad is None] == []
    without = [name for name, p in backbone.named_parameters() if not p.grad.any()]
    # a bias in front of a softmax over, or a normalisation along, what it shifts has none
    expected = ('conv1.bias', 'proj_l.bias')
    assert [name for name in without if not name.endswith(expected)] == []


@pytest.mark.parametrize('with_cp', [True, 2])
@every_backbone
def test_checkpointing_changes_nothing(make: partial, with_cp: bool | int) -> None:
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
    # batch statistics are counted once, although the blocks ran twice
    assert all(torch.equal(state[name], cp_state[name]) for name in state)


def test_every_nth_block_is_recomputed() -> None:
    runs = []
    for with_cp in (False, True, 2, 3):
        backbone, count = tiny(XCiT, with_cp=with_cp).train(), []
        for index, block in enumerate(backbone.blocks):
            block.register_forward_pre_hook(lambda *_, i=index, count=count: count.append(i))
        sum(m.sum() for m in backbone(torch.rand(1, 3, 40, 56))).backward()
        runs.append(sorted(count[4:]))  # of four blocks
    assert runs == [[], [0, 1, 2, 3], [0, 2], [0, 3]]
    with pytest.raises(ValueError, match='with_cp must be False, True for all blocks'):
        tiny(XCiT, with_cp='attention')


@pytest.mark.parametrize('with_cp', [False, True])
@every_backbone
def test_a_graph_is_gone_through_twice(make: partial, with_cp: bool) -> None:
    backbone = tiny(make, with_cp=with_cp).train()
    loss = sum(m.square().mean() for m in backbone(torch.randn(2, 3, 40, 56)))
    once, twice = (
        torch.autograd.grad(loss, list(backbone.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@every_backbone
def test_an_image_without_a_batch(make: partial) -> None:
    with pytest.raises(ValueError, match=r'must be \(B, 3, H, W\), got the shape \(3, 64, 64\)'):
        tiny(make)(torch.randn(3, 64, 64))


@pytest.mark.parametrize('frozen_stages', [0, 2, 4])
@every_backbone
def test_freezing_survives_train(make: partial, frozen_stages: int) -> None:
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


@every_class_with_kernels
@torch.no_grad()
def test_an_empty_batch_through_a_fused_backbone(cls: type) -> None:
    maps = tiny(cls).eval().fuse()(torch.empty(0, 3, 75, 101))
    assert [len(m) for m in maps] == [0] * 4


@pytest.mark.parametrize('training', [False, True])
@every_class
def test_maps_and_gradients_equal_timms(cls: type, training: bool) -> None:
    """On images of the native grid, which all of timm's modules take."""
    ours, theirs = pair(cls)
    for a, b in zip(*(results(model, training=training) for model in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@every_class
def test_weights_load_strictly(cls: type, tmp_path: Path) -> None:
    """Ours and timm's, whole; not if a tensor is missing, of another shape, or too many."""
    ours = tiny(cls)
    theirs = {**ours.timm_module(64, 5).state_dict(), **ours.state_dict()}
    for state in (ours.state_dict(), theirs):
        fitting = [backbone for backbone, layouts in LAYOUTS_OF.items()
                   if any(layout.fits(state) for layout in layouts)]  # yapf: disable
        assert fitting == [cls.__name__]
        torch.save(state, tmp_path / 'a.pth')
        backbone = tiny(cls)
        for parameter in backbone.parameters():
            parameter.data.zero_()
        load_weights(backbone, tmp_path / 'a.pth')
        assert all(torch.equal(value, state[key]) for key, value in backbone.state_dict().items())
        key = next(key for key in state if key.startswith('blocks.1.norm'))
        for spoilt in (without(state, key), {**state, key: state[key][..., :3]},
                       {**state, 'blocks.1.other': state[key]}):  # yapf: disable
            torch.save(spoilt, tmp_path / 'b.pth')
            with pytest.raises(WeightsError, match='blocks.1'):
                load_weights(backbone, tmp_path / 'b.pth')


def without(state: dict[str, torch.Tensor], key: str) -> dict[str, torch.Tensor]:
    return {other: value for other, value in state.items() if other != key}
