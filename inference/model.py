"""A detector or segmenter with its weights, its classes and its test pipeline."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import IOBase
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import nn

from colonnade.common.errors import UserCodeError, UserError
from colonnade.common.prefetching import prefetch_map
from colonnade.models.complexity import count_parameters
from colonnade.runtime.images import MAX_PIXELS, ImageError, Source, name_of, read_image
from colonnade.settings.registries import runs_user_code

from .arrays import CHANNELS, Channels, as_rgb, is_array
from .batches import in_batches
from .data_samples import kind_of, to_instances
from .drawing import Colour
from .results import LabelMap, Result
from .test_pipeline import pipeline_for_arrays
from .tiling import View, merge, tiles_of

WORKERS = 2  # threads that decode
OVERLAP = 0.25
MAX_TILED_PIXELS = 2**30  # of an image that is predicted in tiles, as OpenCV decodes for training
SINGLE = (str, Path, Image.Image, bytes, IOBase)  # what one image may be, beside arrays
IMAGE = "an image is a path, an image of Pillow's, an array, a tensor or the content of a file"


@runtime_checkable
class BinaryFile(Protocol):
    """An open file, or what is read as one."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, all of them by default."""


@dataclass(frozen=True)
class Answer:
    """What became of one image.

    Attributes:
        source: The image as it was given.
        image: Its RGB values, ``(H, W, 3)``; None if it could not be read.
        result: None if it could not be read.
        error: Why it could not be read.
    """
    source: Any
    image: np.ndarray | None = None
    result: Result | None = None
    error: ImageError | None = None


@dataclass(frozen=True)
class Prepared:
    """An image that was decoded and sent through the test pipeline, or why it could not be."""
    answer: Answer
    data: dict[str, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self.data is None else tuple(self.data['inputs'].shape)


def loaded(source: Source) -> Source:
    """An image, of Pillow's decoded: several threads must not decode the same."""
    if isinstance(source, Image.Image):
        with suppress(Exception):  # of a file that is damaged, which reading it will say
            source.load()
    return source


def is_single(images: Any) -> bool:
    """Return True for one image, and False for several; an array of four dimensions is several."""
    return images.ndim < 4 if is_array(images) else isinstance(images, SINGLE)


def decoded(source: Source, channels: Channels, max_pixels: int = MAX_PIXELS) -> Answer:
    """An image and its values, or why it could not be read.

    Args:
        source: The image.
        channels: Order of the channels of an array or a tensor.
        max_pixels: See :func:`~colonnade.runtime.images.read_image`.
    """
    try:
        if is_array(source):
            return Answer(source, as_rgb(source, channels))
        if not isinstance(source, (*SINGLE, BinaryFile)):
            raise ImageError(f'{IMAGE}, got {type(source).__name__}')
        return Answer(source, read_image(source, max_pixels=max_pixels))
    except ImageError as error:
        return Answer(source, error=error)


class RefusedImageError(ImageError, UserCodeError):
    """An image at which somebody's own transform or model fails."""


def image_error(text: str, cause: Exception) -> ImageError:
    """Return the error of an image that pipeline or model do not take.

    Args:
        text: What it says.
        cause: Error that they raised.
    """
    is_of_user = isinstance(cause, UserCodeError) or runs_user_code(cause)
    return (RefusedImageError if is_of_user else ImageError)(text)


def with_image(answer: Answer) -> Answer:
    """Return an answer whose result has the image, unless it can be read again."""
    if answer.result is None or answer.result.source is not None:
        return answer
    return replace(answer, result=replace(answer.result, image=answer.image))


class Model:
    """A detector or segmenter that predicts; :func:`load` makes it.

    Attributes:
        module: mmdet's or mmseg's model, in evaluation mode.
        cfg: Its config.
        classes: The names of its classes.
        palette: A colour of each, ``(red, green, blue)``.
        kind: ``'masks'`` (instances with masks), ``'boxes'`` (instances without) or ``'labels'``.
        source: Where its weights are from.
        num_parameters: How many it has before it is fused.
        progress: ``epoch`` and ``iter`` that the weights were trained for, if their file says so.
    """

    def __init__(self,
                 module: nn.Module,
                 cfg: Config,
                 classes: tuple[str, ...],
                 palette: tuple[Colour, ...],
                 source: str,
                 progress: dict[str, int] | None = None) -> None:
        self.module, self.cfg, self.source = module, cfg, source
        self.classes, self.palette = classes, palette
        self.kind, self.num_parameters = kind_of(module), count_parameters(module)
        self.pipeline = pipeline_for_arrays(cfg)
        self.progress = progress or {}

    def __repr__(self) -> str:
        name = type(self.module).__name__
        return (f'{name} on {self.backbone_name}, {len(self.classes)} classes, answers '
                f'{self.kind}, weights from {self.source}, on {self.device}')

    @property
    def backbone_name(self) -> str:
        """Name of the backbone's class."""
        return type(dict(self.module.named_children()).get('backbone')).__name__

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.module.parameters()).device

    @property
    def default_batch_size(self) -> int:
        """Images that are computed at a time: 1 on a CPU, which gains nothing by more."""
        return 1 if self.device.type == 'cpu' else 8

    def prepare(self, image: np.ndarray, name: str = 'the image') -> dict[str, Any]:
        """What the test pipeline of the config makes of an image.

        Args:
            image: RGB values, ``(H, W, 3)``, uint8.
            name: What errors call it.

        Returns:
            ``inputs``, ``(3, h, w)``, and ``data_samples``.

        Raises:
            ImageError: If the pipeline cannot take it.
        """
        try:
            return self.pipeline(dict(img=np.ascontiguousarray(image[..., ::-1]), img_id=0))
        except (ValueError, TypeError, AssertionError, ZeroDivisionError, cv2.error) as error:
            height, width = image.shape[:2]
            reason = ' '.join(str(error).split())
            raise image_error(
                f'{name} of {height} x {width} pixels does not pass the test pipeline of the '
                f'config: {reason}', error) from error

    def run(self, batch: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """The samples of mmdet or mmseg for images that :meth:`prepare` prepared.

        Raises:
            ImageError: If it is one image, and the model does not take it.
        """
        data = {key: [item[key] for item in batch] for key in ('inputs', 'data_samples')}
        try:
            with torch.inference_mode():
                return self.module.test_step(data)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, AssertionError, RuntimeError) as error:
            if len(batch) > 1:
                raise
            raise image_error(f'the model does not take it: {error}', error) from error

    def answers(self,
                images: Iterable[Source],
                *,
                channels: Channels = 'rgb',
                batch_size: int | None = None,
                tile: int | None = None,
                overlap: float | None = None) -> Iterator[Answer]:
        """What became of each image, in order; images that cannot be read do not end it.

        Images are decoded in threads beside the computation. Those whose prepared sizes are equal
        share a batch, so that answers are as for one at a time, to rounding.

        Args:
            images: Paths, images of Pillow's, arrays or tensors, see :meth:`predict`; may be
                endless.
            channels: Order of the channels of arrays and tensors: ``'rgb'``, or ``'bgr'`` for those
                of OpenCV.
            batch_size: Images at a time; see :attr:`default_batch_size`.
            tile: Images with a longer side are predicted in tiles of at most this height and width;
                detectors see them as a whole too. See :mod:`.tiling`.
            overlap: Share of a tile that it has in common with the next (0.25).

        Raises:
            ValueError: If the tiles, the size of batches or the channels are impossible.
        """
        if channels not in CHANNELS:
            raise UserError(f'channels must be {" or ".join(CHANNELS)}, got {channels!r}')
        images = map(loaded, images)
        size = self.default_batch_size if batch_size is None else batch_size
        if size < 1:
            raise UserError(f'a batch has at least one image, got {size}')
        if tile is None:
            if overlap is not None:
                raise UserError('overlap is of tiles, and tile is not given')
            read = prefetch_map(
                partial(self._read, channels=channels), images, workers=WORKERS, ahead=2 * size + 2)
            return map(with_image, self._run(read, size))
        overlap = OVERLAP if overlap is None else overlap
        tiles_of((1, 1), tile, overlap)
        decode = partial(decoded, channels=channels, max_pixels=MAX_TILED_PIXELS)
        whole = prefetch_map(decode, images, workers=1, ahead=1)
        return map(with_image, self._in_tiles(whole, size, tile, overlap))

    def _in_tiles(self, answers: Iterable[Answer], batch_size: int, tile: int,
                  overlap: float) -> Iterator[Answer]:
        for answer in answers:
            if answer.image is None:
                yield answer
                continue
            size = answer.image.shape[:2]
            views = tiles_of(size, tile, overlap)
            if len(views) > 1 and self.kind != 'labels':
                views.append(View(0, 0, *size))
            crops = (replace(answer, image=answer.image[view.slices]) for view in views)
            read = prefetch_map(self._prepared, crops, workers=WORKERS, ahead=2 * batch_size + 2)
            found = [(part.result, part.error) for part in self._run(read, batch_size)]
            if error := next((error for _, error in found if error), None):
                yield replace(answer, image=None, error=error)
            else:
                results = [result for result, _ in found if result is not None]
                yield replace(answer, result=merge(results, views, size))

    def _read(self, source: Source, channels: Channels) -> Prepared:
        return self._prepared(decoded(source, channels))

    def _prepared(self, answer: Answer) -> Prepared:
        """An image that was decoded, for the network."""
        if answer.image is None:
            return Prepared(answer)
        try:
            return Prepared(answer, self.prepare(answer.image, name_of(answer.source)))
        except ImageError as error:
            return Prepared(replace(answer, image=None, error=error))

    def _run(self, items: Iterable[Prepared], batch_size: int) -> Iterator[Answer]:
        for item, found in in_batches(
                self._results, items, shape_of=lambda item: item.shape, batch_size=batch_size):
            if isinstance(found, ImageError):
                yield replace(item.answer, image=None, error=found)
            else:
                yield replace(item.answer, result=found)

    def _results(self, batch: list[Prepared]) -> list[Result | ImageError]:
        """Results of a batch, or of each image alone if the model does not take all of them."""
        try:
            samples = self.run([item.data for item in batch if item.data is not None])
            return [
                self.result(sample, item.answer.source)
                for item, sample in zip(batch, samples, strict=True)
            ]
        except torch.OutOfMemoryError:
            raise
        except (ValueError, AssertionError, RuntimeError) as error:
            if len(batch) > 1:
                return [found for item in batch for found in self._results([item])]
            found = image_error(f'{name_of(batch[0].answer.source)}: {error}', error)
            found.__cause__ = error.__cause__ or error
            return [found]

    def result(self, sample: BaseDataElement, source: Any = None) -> Result:
        """An answer of mmdet's or mmseg's as ours.

        Args:
            sample: With ``pred_instances`` or ``pred_sem_seg``.
            source: The image; kept if it is a path.
        """
        path = str(source) if isinstance(source, (str, Path)) else None
        shared: dict[str, Any] = dict(classes=self.classes, palette=self.palette, source=path)
        if self.kind == 'labels':
            labels = sample.pred_sem_seg.data[0].cpu().numpy()
            kind = np.uint8 if len(self.classes) <= 256 else np.uint16
            return LabelMap(size=labels.shape, labels=labels.astype(kind), **shared)
        return to_instances(sample, with_masks=self.kind == 'masks', **shared)

    def predict_stream(self, images: Iterable[Source], **options: Any) -> Iterator[Result]:
        """The results of many images, one after the other.

        Args:
            images: May be endless.
            **options: As of :meth:`answers`.

        Raises:
            ImageError: If an image cannot be read.
            ValueError: As :meth:`answers`.
        """
        if is_single(images):
            raise TypeError('predict_stream takes several images: predict takes one')
        for answer in self.answers(images, **options):
            if answer.error is not None:
                raise answer.error
            assert answer.result is not None  # of what was read
            yield answer.result

    @overload
    def predict(self,
                images: str | Path | Image.Image | np.ndarray | torch.Tensor | bytes,
                *,
                channels: Channels = 'rgb',
                **options: Any) -> Result:
        ...

    @overload
    def predict(self,
                images: Iterable[Source],
                *,
                channels: Channels = 'rgb',
                **options: Any) -> list[Result]:
        ...

    def predict(self,
                images: Any,
                *,
                channels: Channels = 'rgb',
                **options: Any) -> Result | list[Result]:
        """What the model finds in an image, or in each of several.

        Args:
            images: A path, an image of Pillow's, an array or a tensor, or several of these. Arrays
                are ``(H, W, 3)`` or ``(H, W)``, tensors also ``(3, H, W)``; they hold uint8, or
                floats from 0 to 1. One of four dimensions is several images.
            channels: Order of the channels of arrays and tensors: ``'rgb'``, or ``'bgr'`` for those
                of OpenCV. Files and images of Pillow's say it themselves.
            **options: ``batch_size``, ``tile`` and ``overlap``, as of :meth:`answers`.

        Returns:
            An :class:`Instances` or :class:`LabelMap` of an image, a list of them of several.

        Raises:
            ImageError: If an image cannot be read.
            ValueError: As :meth:`answers`.
        """
        if is_single(images):
            return next(self.predict_stream([images], channels=channels, **options))
        if not isinstance(images, Iterable):
            raise TypeError(f'{IMAGE}, got {type(images).__name__}')
        return list(self.predict_stream(images, channels=channels, **options))
