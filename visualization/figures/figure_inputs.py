"""Inputs of figures: an image as the network receives it, and its feature maps.

Shapes: ``B = 1`` image, ``H, W`` its height and width before the network, including padding.
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

Size = tuple[int, int]  # height and width


@dataclass(frozen=True)
class PreparedImage:
    """Image that is ready for the network."""
    pixels: np.ndarray  # RGB values after the test pipeline, without padding, (h, w, 3), uint8
    original_size: Size
    inputs: Tensor  # normalized and padded, (1, 3, H, W)
    samples: list[Any]  # data sample of mmdet or mmseg
    name: str = 'the image'  # in messages

    def scale_point(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return a point ``(x, y)`` of the original image in pixels of this one."""
        (height, width), (x, y) = self.original_size, point
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(f'point ({x:g}, {y:g}) is outside {self.name}, which has '
                            f'{width} x {height} pixels')
        return x / width * self.pixels.shape[1], y / height * self.pixels.shape[0]


def prepare_image(model: Model,
                  array: np.ndarray,
                  size: Size | None = None,
                  name: str = 'the image') -> PreparedImage:
    """Return RGB values ``(h, w, 3)``, uint8, after the test pipeline and the data preprocessor.

    With a size, the image is resized to it bilinearly and antialiased instead of by the pipeline.
    """
    data = model.prepare(array, name)
    if size is not None:
        resized = [
            Image.fromarray(band).resize(size[::-1], Image.Resampling.BILINEAR)
            for band in np.moveaxis(array, 2, 0)[::1 if model.bands else -1]
        ]
        data['inputs'] = torch.from_numpy(np.stack(resized))
        height, width = array.shape[:2]
        data['data_samples'].set_metainfo(
            dict(img_shape=size, pad_shape=size, scale_factor=(size[1] / width, size[0] / height)))
    values = data['inputs'].permute(1, 2, 0).numpy()
    pixels = model.bands.to_rgb(values) if model.bands else values[..., ::-1].clip(0, 255).astype(
        np.uint8)
    batch = dict(inputs=[data['inputs']], data_samples=[data['data_samples']])
    ready = model.module.data_preprocessor(batch, False)
    return PreparedImage(
        np.ascontiguousarray(pixels), array.shape[:2], ready['inputs'], ready['data_samples'], name)


@dataclass
class FeatureMaps:
    """Feature maps ``(1, C, h, w)`` of a forward pass."""
    backbone: list[Tensor] = field(default_factory=list)
    pyramid: list[Tensor] = field(default_factory=list)  # empty without a neck


@contextmanager
def record_maps(module: nn.Module, *, as_leaves: bool = False) -> Iterator[FeatureMaps]:
    """Context manager that records the feature maps of the latest forward pass.

    With ``as_leaves``, gradients end at the maps of the backbone, which then stores nothing for
    gradients. They must be enabled outside of it.
    """
    maps = FeatureMaps()

    def record_backbone(_: nn.Module, __: tuple, out: Any) -> tuple[Tensor, ...]:
        maps.backbone = find_maps(out)
        if as_leaves:
            maps.backbone = [x.detach().requires_grad_() for x in maps.backbone]
            out = tuple(maps.backbone)
        return out

    def record_pyramid(_: nn.Module, __: tuple, out: Any) -> None:
        maps.pyramid = find_maps(out)

    def set_gradients(enabled: bool, *_: Any) -> None:
        torch.set_grad_enabled(enabled)

    handles = [module.backbone.register_forward_hook(record_backbone)]
    if as_leaves:
        handles.append(module.backbone.register_forward_pre_hook(partial(set_gradients, False)))
        handles.append(module.backbone.register_forward_hook(partial(set_gradients, True)))
    if module.with_neck:
        handles.append(module.neck.register_forward_hook(record_pyramid))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def find_maps(out: Any) -> list[Tensor]:
    """Return the feature maps among the outputs of a backbone or a neck."""
    outputs = [out] if isinstance(out, Tensor) else list(out)
    maps = [each[0] if isinstance(each, (tuple, list)) else each for each in outputs]
    return [each for each in maps if isinstance(each, Tensor) and each.ndim == 4]


class NamedMap(NamedTuple):
    """Feature map with its name in figures."""
    name: str
    values: Tensor  # (1, C, h, w)
    stride: float  # pixels

    def crop_padding(self, image: PreparedImage) -> Tensor:
        """Return the part ``(C, h, w)`` that is not padding."""
        height, width = (max(1, math.ceil(side / self.stride)) for side in image.pixels.shape[:2])
        return self.values[0, :, :height, :width]


def name_maps(model: Model, maps: FeatureMaps, image: PreparedImage) -> list[NamedMap]:
    """Return all maps with names and strides, those of the backbone first."""
    backbone, named = model.module.backbone, []
    is_columnar = isinstance(backbone, ColumnarBackbone)

    def compute_stride(values: Tensor, unit: int = 1) -> float:
        """Return the stride, which is ``unit`` times a power of 2."""
        ratio = max(image.inputs.shape[-2:]) / max(values.shape[-2:])
        return unit * 2.**round(math.log2(ratio / unit))

    for index, values in enumerate(maps.backbone):
        name = f'block {backbone.out_indices[index]}' if is_columnar else f'map {index}'
        stride = backbone.patch_size if is_columnar else compute_stride(values)
        named.append(NamedMap(name, values, stride))
    for values in maps.pyramid:
        stride = compute_stride(values, backbone.patch_size if is_columnar else 1)
        named.append(NamedMap(f'stride {stride:g}', values, stride))
    return named
