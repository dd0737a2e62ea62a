"""An image as the network sees it, and its feature maps.

Shapes: ``B = 1`` image, ``H, W`` its height and width before the network, padding included.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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
        image: RGB values after the test pipeline, before normalization and padding, ``(h, w, 3)``,
            uint8. Figures show this one.
        original: Height and width of the image that was given.
        inputs: Normalized and padded, ``(1, 3, H, W)``.
        samples: Data sample of mmdet or mmseg, in a list.
        name: Name in messages.
    """
    image: np.ndarray
    original: Size
    inputs: Tensor
    samples: list[Any]
    name: str = 'the image'

    def to_seen(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return a point ``(x, y)`` of the original in pixels of :attr:`image`.

        Raises:
            ValueError: If it is not on the image.
        """
        (height, width), (x, y) = self.original, point
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(
                f'{self.name} has {width} x {height} pixels, and no point ({x:g}, {y:g})')
        return x / width * self.image.shape[1], y / height * self.image.shape[0]


def see(model: Model, array: np.ndarray, size: Size | None = None, name: str = 'the image') -> Seen:
    """Return an image after the test pipeline and the model's preprocessing.

    Args:
        model: Model.
        array: RGB values, ``(h, w, 3)``, uint8.
        size: Height and width to resize it to, instead of what the test pipeline does; bilinear,
            antialiased.
        name: Name in messages.

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
class FeatureMaps:
    """Feature maps of a forward pass.

    Attributes:
        taps: Maps ``(1, C, h, w)`` of the backbone.
        levels: Maps of the pyramid; none without a neck.
    """
    taps: list[Tensor] = field(default_factory=list)
    levels: list[Tensor] = field(default_factory=list)


@contextmanager
def record_maps(module: nn.Module, *, as_leaves: bool = False) -> Iterator[FeatureMaps]:
    """Context manager that records the feature maps of the latest forward pass.

    Args:
        module: Detector or segmenter.
        as_leaves: Make the graph of gradients begin at the backbone's maps. The backbone then
            stores nothing for gradients, which must be enabled outside of it.
    """
    maps = FeatureMaps()

    def tap(_: nn.Module, __: tuple, out: Any) -> tuple[Tensor, ...]:
        found = find_maps(out)
        if as_leaves:
            found = [x.detach().requires_grad_() for x in found]
            out = tuple(found)
        maps.taps = found
        return out

    def level(_: nn.Module, __: tuple, out: Any) -> None:
        maps.levels = find_maps(out)

    handles = [module.backbone.register_forward_hook(tap)]
    if as_leaves:
        disable, enable = (partial(set_gradients, wanted) for wanted in (False, True))
        handles.append(module.backbone.register_forward_pre_hook(disable))
        handles.append(module.backbone.register_forward_hook(enable))
    if module.with_neck:
        handles.append(module.neck.register_forward_hook(level))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def set_gradients(wanted: bool, *_: Any) -> None:
    """Set whether the module that runs next stores what gradients need, as a hook."""
    torch.set_grad_enabled(wanted)


def find_maps(out: Any) -> list[Tensor]:
    """Return the feature maps among the outputs of a backbone or a neck."""
    given = [out] if isinstance(out, Tensor) else list(out)
    maps = [each[0] if isinstance(each, (tuple, list)) else each for each in given]
    return [each for each in maps if isinstance(each, Tensor) and each.ndim == 4]


def compute_maps(model: Model, seen: Seen) -> FeatureMaps:
    """Return the feature maps of an image, without gradients."""
    with torch.no_grad(), record_maps(model.module) as maps:
        model.module.extract_feat(seen.inputs)
    return maps


def stride_of(values: Tensor, seen: Seen, unit: int = 1) -> float:
    """Return the stride of a map ``(1, C, h, w)`` in pixels: ``unit`` times a power of 2."""
    ratio = max(seen.inputs.shape[-2:]) / max(values.shape[-2:])
    return unit * 2.**round(math.log2(ratio / unit))


class NamedMap(NamedTuple):
    """A feature map of the backbone or the pyramid, ``(1, C, h, w)``, and its stride in pixels."""
    name: str
    values: Tensor
    stride: float

    def on_image(self, seen: Seen) -> Tensor:
        """Return the part ``(C, h, w)`` that is not padding."""
        height, width = (max(1, math.ceil(side / self.stride)) for side in seen.image.shape[:2])
        return self.values[0, :, :height, :width]


def named_maps(model: Model, maps: FeatureMaps, seen: Seen) -> list[NamedMap]:
    """Return each map with its name in figures, those of the backbone first."""
    backbone, found = model.module.backbone, []
    columnar = isinstance(backbone, ColumnarBackbone)
    for index, values in enumerate(maps.taps):
        name = f'block {backbone.out_indices[index]}' if columnar else f'map {index}'
        stride = backbone.patch_size if columnar else stride_of(values, seen)
        found.append(NamedMap(name, values, stride))
    for values in maps.levels:
        stride = stride_of(values, seen, backbone.patch_size if columnar else 1)
        found.append(NamedMap(f'stride {stride:g}', values, stride))
    return found
