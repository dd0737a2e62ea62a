"""From an image to what a network takes: the steps of the test pipeline and the data preprocessor.

Sizes are ``(height, width)``, but for the scales of pipelines, which are ``(width, height)``.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .description import Section
from .images import ImageError
from .resizing import resize

Size = tuple[int, int]


@dataclass(frozen=True)
class Prepared:
    """An image for a network.

    Attributes:
        array: Normalised and padded, ``(3, H, W)``, float32.
        size: Of the image as it was given.
        resized: Of the image behind the steps of the pipeline.
        scale: Width and height of the resized image by those of the given one.
    """
    array: np.ndarray
    size: Size
    resized: Size
    scale: tuple[float, float]

    @property
    def padded(self) -> Size:
        """Of ``array``; the image is at its top left."""
        return self.array.shape[1], self.array.shape[2]


@dataclass(frozen=True)
class Step:
    """A step of a test pipeline: it resizes or pads.

    Attributes:
        kind: ``'resize'`` or ``'pad'``.
        scale: Of ``resize``, width and height.
        factor: Of ``resize`` without a scale: by which width and height are multiplied.
        keep_ratio: Of ``resize``: as large as fits within ``scale``, lying or standing.
        size: Of ``pad``, at least.
        multiple: Of ``pad``.
        square: Of ``pad``: as wide as high.
        value: Of ``pad``: red, green, blue.
    """
    kind: str
    scale: Size | None = None
    factor: tuple[float, float] | None = None
    keep_ratio: bool = False
    size: Size | None = None
    multiple: int = 1
    square: bool = False
    value: tuple[float, float, float] = (0, 0, 0)


@dataclass(frozen=True)
class Preprocess:
    """How images are prepared.

    Attributes:
        steps: Of the test pipeline.
        is_rgb: Whether the network takes red first; else blue.
        mean: Of each channel, in the network's order.
        std: As ``mean``.
        pad_size: The size that normalised images are padded to, if they are smaller.
        pad_multiple: The multiple that they are padded to otherwise.
        pad_value: By which they are padded, below and right.
        multiple: That graphs take sizes of; normalised images are padded with 0 to it.
        least: The smallest height and width that graphs take.
    """
    steps: tuple[Step, ...]
    is_rgb: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad_size: Size | None
    pad_multiple: int
    pad_value: float
    multiple: int
    least: int

    def __call__(self, image: np.ndarray, name: str = 'the image') -> Prepared:
        """Prepare an image.

        Args:
            image: RGB values, ``(H, W, 3)``, uint8.
            name: What errors call it.

        Raises:
            ImageError: If it would have no pixels, or fewer than graphs take.
        """
        size, scale = image.shape[:2], (1., 1.)
        for step in self.steps:
            before = image.shape[:2]
            if step.kind == 'pad':
                image = padded_image(image, step)
                continue
            after = new_size(before, step)
            if min(after) < 1:
                raise ImageError(f'{name} of {before[0]} x {before[1]} pixels would be resized to '
                                 f'{after[0]} x {after[1]}')
            image = resize(image, after)
            scale = after[1] / before[1], after[0] / before[0]
        array = np.asarray(image if self.is_rgb else image[..., ::-1], dtype=np.float32)
        array = (array - np.float32(self.mean)) / np.float32(self.std)
        array = np.ascontiguousarray(array.transpose(2, 0, 1))
        wanted = self.pad_size or upwards(image.shape[:2], self.pad_multiple)
        array = padded(array, wanted, self.pad_value)
        if min(array.shape[1:]) < self.least:
            raise ImageError(f'{name} of {size[0]} x {size[1]} pixels is prepared as '
                             f'{array.shape[1]} x {array.shape[2]}, and the graphs take at least '
                             f'{self.least} x {self.least}')
        return Prepared(array, size[:2], image.shape[:2], scale)

    def for_graphs(self, images: np.ndarray) -> np.ndarray:
        """Images ``(B, 3, H, W)`` of a size that graphs take."""
        return padded(images, upwards(images.shape[2:], self.multiple))


def new_size(size: Size, step: Step) -> Size:
    """The size that a step resizes to, rounded as the pipelines round."""
    height, width = size
    if step.scale is None:
        assert step.factor is not None  # as read_preprocess checks
        scale = int(width * step.factor[0] + 0.5), int(height * step.factor[1] + 0.5)
    else:
        scale = step.scale
    if not step.keep_ratio:
        return scale[1], scale[0]
    factor = min(max(scale) / max(size), min(scale) / min(size))
    return int(height * factor + 0.5), int(width * factor + 0.5)


def upwards(size: Size, multiple: int) -> Size:
    """The smallest multiples that are not below a size."""
    return (math.ceil(size[0] / multiple) * multiple, math.ceil(size[1] / multiple) * multiple)


def padded(array: np.ndarray, size: Size, value: float = 0.) -> np.ndarray:
    """``(..., H, W)`` with rows below and columns right of it, up to a size."""
    rows, columns = (max(0, size[i] - array.shape[i - 2]) for i in range(2))
    if not (rows or columns):
        return array
    around = [(0, 0)] * (array.ndim - 2) + [(0, rows), (0, columns)]
    return np.pad(array, around, constant_values=value)


def padded_image(image: np.ndarray, step: Step) -> np.ndarray:
    """``(H, W, 3)`` as a step of a pipeline pads it."""
    height, width = image.shape[:2]
    wanted = (max(height, width), ) * 2 if step.square else step.size or (height, width)
    wanted = upwards(wanted, step.multiple)
    whole = np.empty((max(wanted[0], height), max(wanted[1], width), 3), dtype=np.uint8)
    whole[:] = np.uint8(step.value)
    whole[:height, :width] = image
    return whole


def read_preprocess(about: Section) -> Preprocess:
    """What ``model.json`` says of preparing images.

    Raises:
        ModelError: If something is missing or impossible.
    """
    pad = about.below('pad')
    std = about.numbers('std', 3)
    if min(std) <= 0:
        raise about.fault('std', 'three numbers above 0', list(std))
    return Preprocess(
        steps=tuple(map(read_step, about.each('steps'))),
        is_rgb=about.choice('channels', 'RGB', 'BGR') == 'RGB',
        mean=about.numbers('mean', 3),
        std=std,
        pad_size=pad.size('size', None) if pad else None,
        pad_multiple=positive(pad, 'multiple', 1) if pad else 1,
        pad_value=pad.get('value', float, 'a number', 0.) if pad else 0.,
        multiple=positive(about, 'multiple', 1),
        least=positive(about, 'least', 1))


def read_step(about: Section) -> Step:
    """What ``model.json`` says of a step."""
    kind = about.choice('type', 'resize', 'pad')
    if kind == 'pad':
        return Step(
            kind,
            size=about.size('size', None),
            multiple=positive(about, 'multiple', 1),
            square=about.get('square', bool, 'true or false', False),
            value=about.numbers('value', 3, default=(0, 0, 0)))
    scale = about.size('scale', None)
    factor = about.numbers('factor', 2, default=None)
    if scale is None and factor is None:
        raise about.fault('scale', 'a width and height', None)
    return Step(
        kind,
        scale=scale,
        factor=factor,
        keep_ratio=about.get('keep_ratio', bool, 'true or false', False))


def positive(about: Section, key: str, *default: int) -> int:
    """A whole number of at least 1."""
    wanted = 'a whole number of at least 1'
    value = about.get(key, int, wanted, *default)
    if value < 1:
        raise about.fault(key, wanted, value)
    return value
