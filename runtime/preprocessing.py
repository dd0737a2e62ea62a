"""Preprocessing of images by the steps of test pipeline and data preprocessor.

Sizes are ``(height, width)``, except scales of pipelines, which are ``(width, height)``.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .bands import read_bands
from .images import ImageError, read_image
from .metadata import Section
from .resizing import resize_image

Size = tuple[int, int]


@dataclass(frozen=True)
class PreparedImage:
    """Input of a network."""
    array: np.ndarray  # normalized and padded, (c, H, W), float32
    size: Size  # height and width of the original image
    resized: Size  # size of the image after the pipeline
    scale: tuple[float, float]  # ratio of the resized to the original width and height

    @property
    def padded(self) -> Size:
        """Size of ``array``, whose top left part is the image."""
        return self.array.shape[1], self.array.shape[2]


@dataclass(frozen=True)
class Bands:
    """Bands of images that are not RGB."""
    number: int
    suffixes: tuple[str, ...]  # ends of the names of the files of an image


@dataclass(frozen=True)
class Step:
    """A step of a test pipeline."""
    kind: str  # 'resize' or 'pad'
    scale: Size | None = None  # width and height to resize to
    factor: tuple[float, float] | None = None  # factors of width and height, without a scale
    keep_ratio: bool = False  # largest size that fits into the scale, in either orientation
    size: Size | None = None  # smallest size after padding
    multiple: int = 1  # divisor of the size after padding
    square: bool = False
    value: tuple[float, ...] = (0, )  # of padding: one, or one per channel

    def compute_size(self, size: Size) -> Size:
        """Return the size after resizing, rounded as in the pipelines."""
        height, width = size
        if self.scale is None:
            assert self.factor is not None  # see read_step
            scale = int(width * self.factor[0] + 0.5), int(height * self.factor[1] + 0.5)
        else:
            scale = self.scale
        if not self.keep_ratio:
            return scale[1], scale[0]
        factor = min(max(scale) / max(size), min(scale) / min(size))
        return int(height * factor + 0.5), int(width * factor + 0.5)

    def pad(self, image: np.ndarray) -> np.ndarray:
        """Pad an image ``(H, W, c)``."""
        height, width = image.shape[:2]
        size = (max(height, width), ) * 2 if self.square else self.size or (height, width)
        size = round_up(size, self.multiple)
        shape = max(size[0], height), max(size[1], width), image.shape[2]
        output = np.empty(shape, dtype=image.dtype)
        output[:] = np.array(self.value, dtype=image.dtype)
        output[:height, :width] = image
        return output


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of images."""
    steps: tuple[Step, ...]
    is_rgb: bool
    mean: tuple[float, ...]  # in the network's channel order
    std: tuple[float, ...]
    pad_size: Size | None  # smallest size of normalized images
    pad_multiple: int  # divisor of their size, without pad_size
    pad_value: float
    multiple: int  # divisor of the sizes that graphs support
    min_side: int  # smallest height and width that graphs support
    bands: Bands | None = None  # of images of more bands than RGB

    def read(self, source: Any) -> np.ndarray:
        """Read an image ``(H, W, c)``: RGB values, uint8, or all bands."""
        if self.bands is None:
            return read_image(source)
        return read_bands(source, self.bands.suffixes, num_bands=self.bands.number)

    def __call__(self, image: np.ndarray, name: str = 'the image') -> PreparedImage:
        """Prepare an image."""
        size, scale = image.shape[:2], (1., 1.)
        for step in self.steps:
            if step.kind == 'pad':
                image = step.pad(image)
                continue
            before = image.shape[:2]
            after = step.compute_size(before)
            if min(after) < 1:
                raise ImageError(f'{name} of {before[0]} x {before[1]} pixels would be resized to '
                                 f'{after[0]} x {after[1]}')
            image = resize_image(image, after)
            scale = after[1] / before[1], after[0] / before[0]
        array = np.asarray(image if self.is_rgb else image[..., ::-1], dtype=np.float32)
        array = (array - np.float32(self.mean)) / np.float32(self.std)
        array = np.ascontiguousarray(array.transpose(2, 0, 1))
        padded_size = self.pad_size or round_up(image.shape[:2], self.pad_multiple)
        array = pad_array(array, padded_size, self.pad_value)
        if min(array.shape[1:]) < self.min_side:
            raise ImageError(f'{name} of {size[0]} x {size[1]} pixels is resized to '
                             f'{array.shape[1]} x {array.shape[2]}, but the graphs need at least '
                             f'{self.min_side} x {self.min_side}')
        return PreparedImage(array, size[:2], image.shape[:2], scale)

    def pad_for_graphs(self, images: np.ndarray) -> np.ndarray:
        """Pad images ``(B, c, H, W)`` to a size that graphs support."""
        return pad_array(images, round_up(images.shape[2:], self.multiple))


def round_up(size: Size, multiple: int) -> Size:
    """Round a size up to multiples."""
    return (math.ceil(size[0] / multiple) * multiple, math.ceil(size[1] / multiple) * multiple)


def pad_array(array: np.ndarray, size: Size, value: float = 0.) -> np.ndarray:
    """Pad ``(..., H, W)`` at the bottom and right, up to a size."""
    rows, columns = (max(0, size[i] - array.shape[i - 2]) for i in range(2))
    if not (rows or columns):
        return array
    widths = [(0, 0)] * (array.ndim - 2) + [(0, rows), (0, columns)]
    return np.pad(array, widths, constant_values=value)


def read_preprocess(section: Section) -> Preprocess:
    """Read the preprocessing from ``model.json``."""
    pad = section.get_section('pad')
    bands = read_bands_section(section.get_section('bands'))
    channels = bands.number if bands else 3
    std = section.get_numbers('std', channels)
    if min(std) <= 0:
        raise section.report_build_errors('std', f'{channels} numbers above 0', list(std))
    return Preprocess(
        steps=tuple(map(read_step, section.get_sections('steps'))),
        is_rgb=section.get_choice('channels', 'RGB', 'BGR') == 'RGB',
        mean=section.get_numbers('mean', channels),
        std=std,
        pad_size=pad.get_size('size', None) if pad else None,
        pad_multiple=pad.get_positive('multiple', 1) if pad else 1,
        pad_value=pad.get_float('value', 0.) if pad else 0.,
        multiple=section.get_positive('multiple', 1),
        min_side=section.get_positive('least', 1),
        bands=bands)


def read_bands_section(section: Section | None) -> Bands | None:
    """Read number and files of the bands from ``model.json``."""
    if section is None:
        return None
    suffixes = section.get('suffixes', list, 'a list of names', [])
    if any(not isinstance(suffix, str) for suffix in suffixes):
        raise section.report_build_errors('suffixes', 'a list of names', suffixes)
    return Bands(section.get_positive('number', 1), tuple(suffixes))


def read_step(section: Section) -> Step:
    """Read a step from ``model.json``."""
    kind = section.get_choice('type', 'resize', 'pad')
    if kind == 'pad':
        return Step(
            kind,
            size=section.get_size('size', None),
            multiple=section.get_positive('multiple', 1),
            square=section.get_bool('square', False),
            value=section.get_numbers(
                'value', len(section.get('value', list, 'numbers', [0])), default=(0, )))
    scale = section.get_size('scale', None)
    factor = section.get_numbers('factor', 2, default=None)
    if scale is None and factor is None:
        raise section.report_build_errors('scale', 'a width and height', None)
    return Step(kind, scale=scale, factor=factor, keep_ratio=section.get_bool('keep_ratio', False))
