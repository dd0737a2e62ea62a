"""What torch and timm keep private and backbones use is as it was read."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from timm.layers import RotaryEmbeddingDinoV3
from torch import nn

from colonnade.backbones.kernels import private_torch


@pytest.mark.parametrize('register', [
    lambda layer: layer.register_forward_hook(lambda *_: None),
    lambda layer: layer.register_forward_pre_hook(lambda *_: None),
    lambda layer: layer.register_full_backward_hook(lambda *_: None),
    lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
])
def test_hooks_of_a_module_are_seen(register: Callable) -> None:
    layer = nn.Linear(2, 2)
    assert not private_torch.has_hooks(layer)
    handle = register(layer)
    assert private_torch.has_hooks(layer)
    handle.remove()
    assert not private_torch.has_hooks(layer)


@pytest.mark.parametrize('register', [
    nn.modules.module.register_module_forward_hook,
    nn.modules.module.register_module_forward_pre_hook,
    nn.modules.module.register_module_full_backward_hook,
    nn.modules.module.register_module_full_backward_pre_hook,
])
def test_hooks_of_all_modules_are_seen(register: Callable) -> None:
    assert not private_torch.all_have_hooks()
    handle = register(lambda *_: None)
    assert private_torch.all_have_hooks()
    handle.remove()
    assert not private_torch.all_have_hooks()


def test_transforms_are_seen() -> None:
    seen = []
    torch.func.vmap(lambda x: seen.append(private_torch.is_transforming()) or x)(torch.ones(2))
    assert seen == [True] and not private_torch.is_transforming()


def test_parameters_and_children_are_those_that_are_registered() -> None:
    module = nn.ModuleDict(dict(a=nn.Linear(2, 2, bias=False), b=None))
    parameters = private_torch.parameters_of(module['a'])
    assert parameters['weight'] is module['a'].weight and parameters['bias'] is None
    assert dict(private_torch.children_of(module)) == dict(a=module['a'], b=None)


def test_rotary_positions_of_places_are_timms() -> None:
    rope = RotaryEmbeddingDinoV3(8).eval()
    centres = (torch.arange(3) + 0.5) / 3
    places = torch.stack(torch.meshgrid(centres, centres, indexing='ij'), dim=-1).flatten(0, 1)
    found = torch.cat(list(private_torch.rotary_positions_of_places(rope, 2 * places - 1)), dim=-1)
    torch.testing.assert_close(found, rope.get_embed(shape=[3, 3]))


@pytest.mark.skipif(not private_torch.HAS_PACKING, reason='needs oneDNN')
@torch.no_grad()
def test_packed_products_are_torchs() -> None:
    """tests/test_packed.py has all layers."""
    layer, x = nn.Linear(8, 4), torch.randn(1, 5, 8)
    packed = private_torch.pack_linear(layer.weight.detach().contiguous(), 5)
    found = private_torch.run_linear(x, packed, layer.bias, 'none', [], '')
    torch.testing.assert_close(found, layer(x))
