"""Which maps a backbone gives, and which of them are read: seen by running it without data."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.settings.reading import errors_of_others

from .meta_device import build_on_meta

SIDE = 896  # of the image: a multiple of 32, 64 and 14


class Map(NamedTuple):
    """A map of features."""
    width: int
    stride: float  # in pixels


def build(part: dict[str, Any]) -> nn.Module:
    """A part of a model that takes no memory."""
    with errors_of_others(f'{part.get("type")} cannot be built'):
        return build_on_meta(ConfigDict(part))


def run(part: nn.Module, inputs: Any) -> list[Tensor]:
    """The maps that a part of a model gives.

    Raises:
        ValueError: If it gives something else, or cannot be run.
    """
    name = type(part).__name__
    with errors_of_others(f'{name} cannot be run'), torch.device('meta'):
        maps = part(inputs)
    maps = [maps] if isinstance(maps, Tensor) else maps
    if not isinstance(maps, (list, tuple)) or not all(
            isinstance(each, Tensor) and each.ndim == 4 for each in maps):
        raise UserError(f'{name} gives something else than maps to its heads: no columnar backbone '
                        'can take its place')
    return list(maps)


def maps_of(backbone: dict[str, Any], *resampling: dict[str, Any]) -> list[Map]:
    """The maps that a backbone gives, or those that necks make of them."""
    size = backbone.get('img_size') or SIDE  # some take no other
    side = size[0] if isinstance(size, (list, tuple)) else size
    return shapes(
        run_all((backbone, *resampling), torch.zeros(1, 3, side, side, device='meta')), side)


def levels_of(neck: dict[str, Any], maps: Sequence[Map]) -> list[Map]:
    """What a neck makes of maps."""
    return shapes(run_all((neck, ), tuple(as_tensors(maps))), SIDE)


def run_all(parts: Sequence[dict[str, Any]], inputs: Any) -> list[Tensor]:
    """Parts of a model in a row, in evaluation."""
    for part in map(build, parts):
        part.eval()
        with torch.no_grad():
            inputs = tuple(run(part, inputs))
    return inputs


def shapes(maps: Sequence[Tensor], side: int) -> list[Map]:
    """Widths and strides of maps of an image."""
    return [Map(each.shape[1], whole(side / each.shape[-1])) for each in maps]


def whole(number: float) -> float:
    """An int if it is one."""
    return int(number) if number == int(number) else number


def as_tensors(maps: Sequence[Map]) -> list[Tensor]:
    """Maps without values, which ask for gradients."""
    return [
        torch.zeros(
            2,
            each.width,
            round(SIDE / each.stride),
            round(SIDE / each.stride),
            device='meta',
            requires_grad=True) for each in maps
    ]


def read_by(neck: dict[str, Any], maps: Sequence[Map]) -> list[int]:
    """Which maps a neck reads: those that its output depends on."""
    inputs = as_tensors(maps)
    output = torch.stack([each.sum() for each in run(build(neck), tuple(inputs))]).sum()
    try:
        gradients = torch.autograd.grad(output, inputs, allow_unused=True)
    except RuntimeError:  # operators such as deformable convolutions have none without memory
        inputs = [
            torch.rand(2, each.width, 8 * 2**level, 8 * 2**level, requires_grad=True)
            for level, each in zip(reversed(range(len(maps))), maps, strict=True)
        ]
        part = MODELS.build(ConfigDict(neck))
        output = torch.stack([each.sum() for each in part(tuple(inputs))]).sum()
        gradients = torch.autograd.grad(output, inputs, allow_unused=True)
    return [index for index, gradient in enumerate(gradients) if gradient is not None]
