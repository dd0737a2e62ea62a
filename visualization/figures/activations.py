"""An image as the network sees it, and the maps that it makes of it.

Shapes: ``B = 1`` image, ``H, W`` its height and width before the network, padding included.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserError
from colonnade.inference.model import Model

Size = tuple[int, int]


@dataclass(frozen=True)
class Seen:
    """An image that is ready for the network.

    Attributes:
        image: RGB values as the test pipeline leaves them, before normalisation and padding,
            ``(h, w, 3)``, uint8. Figures show this one.
        original: Height and width of the image that was given.
        inputs: ``(1, 3, H, W)``, normalised and padded.
        samples: mmdet's or mmseg's data sample, in a list.
        name: What messages call it.
    """
    image: np.ndarray
    original: Size
    inputs: Tensor
    samples: list[Any]
    name: str = 'the image'

    def to_seen(self, point: tuple[float, float]) -> tuple[float, float]:
        """A point ``(x, y)`` in pixels of the original in those of :attr:`image`.

        Raises:
            ValueError: If it is not on the image.
        """
        (height, width), (x, y) = self.original, point
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(
                f'{self.name} has {width} x {height} pixels, and no point ({x:g}, {y:g})')
        return x / width * self.image.shape[1], y / height * self.image.shape[0]


def see(model: Model, array: np.ndarray, size: Size | None = None, name: str = 'the image') -> Seen:
    """An image behind the test pipeline and the model's preprocessing.

    Args:
        model: For which.
        array: RGB values, ``(h, w, 3)``, uint8.
        size: Height and width to resize it to, instead of what the test pipeline makes of it;
            bilinear, antialiased.
        name: What messages call it.

    Raises:
        ImageError: If the pipeline cannot take it.
    """
    data = model.prepare(array, name)
    if size is not None:
        resized = Image.fromarray(array).resize((size[1], size[0]), Image.Resampling.BILINEAR)
        data['inputs'] = torch.from_numpy(np.array(resized)[..., ::-1].copy()).permute(2, 0, 1)
        height, width = array.shape[:2]
        data['data_samples'].set_metainfo(
            dict(img_shape=size, pad_shape=size, scale_factor=(size[1] / width, size[0] / height)))
    shown = data['inputs'].flip(0).permute(1, 2, 0).clamp(0, 255).byte().numpy()
    batch = dict(inputs=[data['inputs']], data_samples=[data['data_samples']])
    ready = model.module.data_preprocessor(batch, False)
    return Seen(
        np.ascontiguousarray(shown), array.shape[:2], ready['inputs'], ready['data_samples'], name)


@dataclass
class Maps:
    """What a run of the model leaves.

    Attributes:
        taps: Maps ``(1, C, h, w)`` of the trunk.
        levels: Those of the pyramid; none without a neck.
    """
    taps: list[Tensor] = field(default_factory=list)
    levels: list[Tensor] = field(default_factory=list)


@contextmanager
def recorded(module: nn.Module, *, as_leaves: bool = False) -> Iterator[Maps]:
    """What trunk and neck give in the latest run within.

    Args:
        module: A detector or segmenter.
        as_leaves: Let the graph of gradients begin at the trunk's maps. The trunk then stores
            nothing for gradients; within, they must be enabled.
    """
    maps = Maps()

    def tap(_: nn.Module, __: tuple, out: Any) -> tuple[Tensor, ...]:
        found = tensors_of(out)
        if as_leaves:
            found = [x.detach().requires_grad_() for x in found]
            out = tuple(found)
        maps.taps = found
        return out

    def level(_: nn.Module, __: tuple, out: Any) -> None:
        maps.levels = tensors_of(out)

    handles = [module.backbone.register_forward_hook(tap)]
    if as_leaves:
        handles += [
            module.backbone.register_forward_pre_hook(lambda *_: set_gradients(False)),
            module.backbone.register_forward_hook(lambda *_: set_gradients(True))
        ]
    if module.with_neck:
        handles.append(module.neck.register_forward_hook(level))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def set_gradients(wanted: bool) -> None:
    """Let the part that runs next store what gradients need, or not."""
    torch.set_grad_enabled(wanted)


def tensors_of(out: Any) -> list[Tensor]:
    """The maps among what a trunk or a neck gives."""
    given = [out] if isinstance(out, Tensor) else list(out)
    maps = [each[0] if isinstance(each, (tuple, list)) else each for each in given]
    return [each for each in maps if isinstance(each, Tensor) and each.ndim == 4]


def maps_of(model: Model, seen: Seen) -> Maps:
    """Maps of trunk and pyramid of an image, without gradients."""
    with torch.no_grad(), recorded(model.module) as maps:
        model.module.extract_feat(seen.inputs)
    return maps


def stride_of(values: Tensor, seen: Seen, unit: int = 1) -> float:
    """Pixels that each value of a map ``(1, C, h, w)`` covers: ``unit`` times a power of 2."""
    ratio = max(seen.inputs.shape[-2:]) / max(values.shape[-2:])
    return unit * 2.**round(math.log2(ratio / unit))


class NamedMap(NamedTuple):
    """A map of the trunk or the pyramid.

    Attributes:
        name: What figures call it.
        values: ``(1, C, h, w)``.
        stride: Pixels that each value covers.
    """
    name: str
    values: Tensor
    stride: float

    def on_image(self, seen: Seen) -> Tensor:
        """The part ``(C, h, w)`` that is no padding."""
        height, width = (max(1, math.ceil(side / self.stride)) for side in seen.image.shape[:2])
        return self.values[0, :, :height, :width]


def named_maps(model: Model, maps: Maps, seen: Seen) -> list[NamedMap]:
    """What each map is called and covers, taps before levels."""
    trunk, found = model.module.backbone, []
    columnar = isinstance(trunk, ColumnarBackbone)
    for index, values in enumerate(maps.taps):
        name = f'block {trunk.out_indices[index]}' if columnar else f'map {index}'
        stride = trunk.patch_size if columnar else stride_of(values, seen)
        found.append(NamedMap(name, values, stride))
    for values in maps.levels:
        stride = stride_of(values, seen, trunk.patch_size if columnar else 1)
        found.append(NamedMap(f'stride {stride:g}', values, stride))
    return found
