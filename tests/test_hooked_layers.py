"""Hooks on layers, which act as in timm's modules."""
from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.backbones import every_class_with_kernels, tiny
from helpers.cases import case
from helpers.modified_layers import (IMAGE, bent, list_layers, of_backbone, pair, replace_layers,
                                     results)
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from colonnade.backbones import CaiT, PlainViT, ResMLP, XCiT
from colonnade.backbones.kernels.folding import FusedError


def replace_forward(layer: nn.Module) -> Callable[[], None]:
    """Replace forward as offloading libraries do, and return a function that restores it."""
    layer.forward = lambda *given, of=layer.forward, **options: bent(of(*given, **options))
    return partial(delattr, layer, 'forward')


CHANGES: tuple[Callable[[nn.Module], Callable[[], None]], ...] = (
    lambda layer: layer.register_forward_hook(lambda _, __, out: bent(out)).remove,
    lambda layer: layer.register_forward_pre_hook(lambda _, x: bent(x)).remove,
    lambda layer: layer.register_full_backward_hook(lambda _, grads, __: tuple(
        g if g is None else g * 1.5 for g in grads)).remove,
    replace_forward,
)
BEFORE, BACKWARD = CHANGES[1:3]


@pytest.mark.parametrize('turn', [0, pytest.param(1, marks=pytest.mark.slow)])
@every_class_with_kernels
def test_hooks_and_replaced_forwards_are_called(cls: type, turn: int) -> None:
    ours, theirs = pair(cls)
    for layer in (*ours.modules(), *theirs.modules()):
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.  # each change starts from the same statistics
    before = {training: results(ours, training=training) for training in (False, True)}
    for place, name in enumerate(list_layers(cls)):
        for change in CHANGES[(place + turn) % 2::2]:
            with case(CHANGES.index(change), name):
                changed = False
                for training in (False, True):
                    undo = [
                        change(of_backbone(model).get_submodule(name)) for model in (ours, theirs)
                    ]
                    found, expected = (
                        results(model, training=training) for model in (ours, theirs))
                    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
                    changed |= not all(map(torch.allclose, found, before[training]))
                    for call in undo:
                        call()
                # a grid is all that pos_embed gets, and the first layers' inputs need no gradient
                assert changed or change is BACKWARD or change is BEFORE and name == 'pos_embed'


@every_class_with_kernels
def test_global_hooks_see_all_modules(cls: type) -> None:
    ours, theirs = pair(cls)
    called = []
    for model in (ours, theirs):
        names = {module: name for name, module in of_backbone(model).named_modules()}
        seen = set()
        handle = register_module_forward_hook(lambda m, *_, to=seen, of=names: to.add(of.get(m)))
        results(model, training=True)
        handle.remove()
        called.append(
            {name
             for name in seen if name and name.startswith(('blocks', 'patch_embed', 'st'))})
    assert called[0] == called[1] and len(called[0]) > 15


@pytest.mark.parametrize('fused', [False, True])
@every_class_with_kernels
@torch.no_grad()
def test_features_kept_by_hooks_are_not_overwritten(cls: type, fused: bool) -> None:
    backbone, _ = pair(cls, torch.float32)
    backbone.eval()
    if fused:
        backbone.fuse()
    kept = []

    def keep(_: nn.Module, given: tuple, out: Any) -> None:
        kept.extend((x, x.clone()) for x in (*given, out) if isinstance(x, Tensor))

    for module in backbone.modules():
        module.register_forward_hook(keep)
    backbone(IMAGE)
    assert len(kept) > 30
    assert all(torch.equal(a, b) for a, b in kept)


@pytest.mark.parametrize('token_mixing, shape', [('resample', (2, 32, 64)),
                                                 ('window', (12, 32, 64))])
def test_hooks_on_token_mixing_see_tokens(token_mixing: str, shape: tuple[int, ...]) -> None:
    backbone, seen = tiny(ResMLP, token_mixing=token_mixing).eval(), []
    backbone.blocks[0].linear_tokens.register_forward_hook(lambda _, given, out: seen.extend(
        (given[0].shape, out.shape)))
    backbone(torch.randn(2, 3, 100, 150))
    assert seen == [shape, shape]


SKIPPED = ('norm3', 'drop_path', 'drop_path1', 'drop_path2', 'drop_path3', 'linear_tokens')
STAY = {  # parts that fusing does not change
    ResMLP: ('norm1', 'stem'),
    CaiT: ('patch_embed', ),
    XCiT: ('pos_embed', ),
    PlainViT: ('patch_embed', 'norm_pre', 'attn.q_norm', 'attn.k_norm', 'attn.norm',
               'attn.proj_drop'),
}  # yapf: disable


@every_class_with_kernels
def test_fuse_reports_hooked_layers(cls: type) -> None:
    original, image = pair(cls)[0].eval(), IMAGE.double()
    for name in list_layers(cls):
        backbone = copy.deepcopy(original)
        backbone.get_submodule(name).register_forward_hook(lambda *_: None)
        expected = backbone(image)[-1]
        stays = any(f'.{part}.' in f'.{name}.' for part in STAY[cls])
        with case(name):
            if name.endswith(SKIPPED) or stays or name == 'blocks.1':
                torch.testing.assert_close(backbone.fuse()(image)[-1], expected)
                continue
            with pytest.raises(
                    FusedError, match=rf'{cls.__name__} cannot be fused.*: {re.escape(name)}$'):
                backbone.fuse()
            assert not backbone.fused
            assert torch.equal(backbone(image)[-1], expected)


@every_class_with_kernels
def test_fuse_reports_each_block(cls: type) -> None:
    backbone = tiny(cls).eval()
    replace_layers(backbone, nn.GELU, lambda _: nn.ReLU())
    backbone.blocks[3] = nn.Identity()
    with pytest.raises(
            FusedError, match=r': .*blocks\.0\.[a-z_.]+, .*blocks\.2\.[a-z_.]+, blocks.3$'):
        backbone.fuse()
