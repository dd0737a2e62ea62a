"""Pairs of backbones of Colonnade and timm with equal weights, and modifications of layers."""
from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from helpers.backbones import ARCHS, tiny
from torch import Tensor, nn

from colonnade.backbones import ColumnarBackbone
from colonnade.evaluation.benchmark.candidates import Intermediates

IMAGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))  # the native grids


def pair(cls: type, dtype: torch.dtype = torch.float64) -> tuple[ColumnarBackbone, nn.Module]:
    """Return backbones of Colonnade and timm with equal weights, none of which is 0 or 1."""
    ours = tiny(cls, ARCHS[cls] | dict(depth=2), out_indices=(0, 1)).to(dtype)
    theirs = ours.timm_module(64).to(dtype)
    state = ours.state_dict()
    for value in state.values():
        if value.is_floating_point():
            value.add_(torch.rand_like(value) * 0.1)
    theirs.load_state_dict({**theirs.state_dict(), **state})
    theirs.stem_names = ours.stem_names
    return ours, Intermediates(theirs, (0, 1))


def of_backbone(model: nn.Module) -> nn.Module:
    return getattr(model, 'backbone', model)


def shared(backbone: nn.Module, named: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return modules or parameters that both backbones have, in the same order."""
    return [
        value for name, value in sorted(named, key=lambda item: item[0])
        if name.startswith((*backbone.stem_names, 'blocks.'))
    ]


def results(model: nn.Module, *, training: bool, seed: int = 0) -> list[Tensor]:
    """Return feature maps and, in training, gradients of the common parameters."""
    torch.manual_seed(seed)
    image = IMAGE.to(next(model.parameters()).dtype)
    model.train(training).zero_grad()
    with torch.set_grad_enabled(training):
        maps = list(model(image))
    if not training:
        return maps
    sum((m * m.detach().cos()).mean() for m in maps).backward()
    backbone = of_backbone(model)
    gradients = [p.grad for p in shared(backbone, backbone.named_parameters()) if p.requires_grad]
    return [m.detach() for m in maps] + gradients


@functools.cache
def original_pair(cls: type) -> tuple[ColumnarBackbone, nn.Module]:
    """Return a cached :func:`pair` to copy."""
    return pair(cls)


@functools.cache
def original_results(cls: type, training: bool) -> list[Tensor]:
    return results(copy.deepcopy(original_pair(cls)[0]), training=training)


def check_equal(cls: type, touch: Callable[[nn.Module], Any]) -> None:
    """Check that a modification changes both backbones equally."""
    changed = False
    for training in (False, True):
        ours, theirs = copy.deepcopy(original_pair(cls))
        for model in (ours, theirs):
            torch.manual_seed(1)
            touch(of_backbone(model.train(training)))
        found = results(ours, training=training)
        for a, b in zip(found, results(theirs, training=training), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        before = original_results(cls, training)
        changed |= any(not torch.allclose(a, b) for a, b in zip(found, before, strict=False))
    assert changed


def list_layers(cls: type) -> list[str]:
    """Return the names of all modules of the stem and a block."""
    with torch.device('meta'):
        backbone = tiny(cls, ARCHS[cls] | dict(depth=2))
    return [
        name for name, module in backbone.named_modules()
        if name.startswith((*backbone.stem_names, 'blocks.1'))
    ]


def bent(given: Any) -> Any:
    """Change a tensor, or those of a tuple."""
    if isinstance(given, tuple):
        return tuple(bent(x) for x in given)
    return given + given.sin() if isinstance(given, Tensor) else given


class LoRA(nn.Module):
    """Layer with a branch of low rank, without a weight attribute."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(layer.in_features, 2, dtype=layer.weight.dtype))
        self.up = nn.Parameter(torch.randn(2, layer.out_features, dtype=layer.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down @ self.up * 0.1


def replace_layers(backbone: nn.Module, kind: type, make: Callable[[nn.Module], nn.Module]) -> None:
    for parent in shared(backbone, backbone.named_modules()):
        for name, child in list(parent.named_children()):
            if type(child) is kind:
                setattr(parent, name, make(child))
