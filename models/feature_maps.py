"""Feature maps of backbones and necks: widths, strides and use, found on the meta device."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.settings.reading import report_third_party_errors

from .building import build_on_meta

SIDE = 896  # pixels; a multiple of 32, 64 and 14


class Map(NamedTuple):
    """Feature map."""
    width: int
    stride: float  # pixels


def build_part(part: dict[str, Any]) -> nn.Module:
    """Build a part of a model on the meta device."""
    with report_third_party_errors(f'{part.get("type")} cannot be built'):
        return build_on_meta(ConfigDict(part))


def _run(part: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the maps that a part of a model outputs, or raise a ValueError."""
    name = type(part).__name__
    with report_third_party_errors(f'{name} cannot be run'), torch.device('meta'):
        maps = part(inputs)
    maps = [maps] if isinstance(maps, Tensor) else maps
    if not isinstance(maps, (list, tuple)) or not all(
            isinstance(each, Tensor) and each.ndim == 4 for each in maps):
        raise UserError(f'{name} outputs more than just feature maps, so no columnar backbone can '
                        'replace it')
    return list(maps)


def find_maps(backbone: dict[str, Any], *resampling: dict[str, Any]) -> list[Map]:
    """Return the maps of a backbone, or those of necks after it."""
    size = backbone.get('img_size') or SIDE  # the only size of some backbones
    side = size[0] if isinstance(size, (list, tuple)) else size
    channels = backbone.get('in_channels', 3)
    return _to_maps(
        _run_all((backbone, *resampling), torch.zeros(1, channels, side, side, device='meta')),
        side)


def find_levels(neck: dict[str, Any], maps: Sequence[Map]) -> list[Map]:
    """Return the levels of a neck, given its inputs."""
    return _to_maps(_run_all((neck, ), tuple(_build_tensors(maps))), SIDE)


def _run_all(parts: Sequence[dict[str, Any]], inputs: Any) -> list[Tensor]:
    """Run consecutive parts of a model in evaluation mode."""
    for part in map(build_part, parts):
        part.eval()
        with torch.no_grad():
            inputs = tuple(_run(part, inputs))
    return inputs


def _to_maps(maps: Sequence[Tensor], side: int) -> list[Map]:
    """Return widths and strides of maps."""
    return [Map(each.shape[1], to_integer(side / each.shape[-1])) for each in maps]


def to_integer(number: float) -> float:
    """Return an integral float as int."""
    return int(number) if number == int(number) else number


def _build_tensors(maps: Sequence[Map]) -> list[Tensor]:
    """Build maps on the meta device that require gradients."""
    shapes = [(2, each.width, *[round(SIDE / each.stride)] * 2) for each in maps]
    return [torch.zeros(shape, device='meta', requires_grad=True) for shape in shapes]


def find_used_maps(neck: dict[str, Any], maps: Sequence[Map]) -> list[int]:
    """Return indices of the maps on which the output of a neck depends."""
    inputs = _build_tensors(maps)
    output = torch.stack([each.sum() for each in _run(build_part(neck), tuple(inputs))]).sum()
    try:
        gradients = torch.autograd.grad(output, inputs, allow_unused=True)
    except RuntimeError:  # deformable convolutions and others have none on the meta device
        inputs = [
            torch.rand(2, each.width, 8 * 2**level, 8 * 2**level, requires_grad=True)
            for level, each in zip(reversed(range(len(maps))), maps, strict=True)
        ]
        part = MODELS.build(ConfigDict(neck))
        output = torch.stack([each.sum() for each in part(tuple(inputs))]).sum()
        gradients = torch.autograd.grad(output, inputs, allow_unused=True)
    return [index for index, gradient in enumerate(gradients) if gradient is not None]
