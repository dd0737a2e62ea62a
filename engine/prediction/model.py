"""A detector or segmenter with its weights, its classes and its test pipeline."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import IOBase
from pathlib import Path
from typing import Any, overload

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import nn

from colonnade.runtime.images import ImageError, Source, name_of, read_image

from ..complexity import count_parameters
from ..prefetching import prefetched
from .batches import in_batches
from .drawing import Colour
from .pipeline import pipeline_for_arrays
from .results import LabelMap, Result
from .samples import instances_of, kind_of
from .tiling import View, merge, tiles_of

WORKERS = 2  # threads that decode
OVERLAP = 0.25
SINGLE = (str, Path, Image.Image, np.ndarray, bytes, IOBase)  # what one image may be


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


def decoded(source: Source) -> Answer:
    """An image and its values, or why it could not be read."""
    try:
        return Answer(source, read_image(source))
    except ImageError as error:
        return Answer(source, error=error)


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
    """

    def __init__(self, module: nn.Module, cfg: Config, classes: tuple[str, ...],
                 palette: tuple[Colour, ...], source: str) -> None:
        self.module, self.cfg, self.source = module, cfg, source
        self.classes, self.palette = classes, palette
        self.kind, self.num_parameters = kind_of(module), count_parameters(module)
        self.pipeline = pipeline_for_arrays(cfg)

    def __repr__(self) -> str:
        trunk = type(getattr(self.module, 'backbone', None)).__name__
        return (f'{type(self.module).__name__} on {trunk}, {len(self.classes)} classes, answers '
                f'{self.kind}, weights from {self.source}, on {self.device}')

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
            raise ImageError(f'{name} of {height} x {width} pixels does not pass the test pipeline '
                             f'of the config: {reason}') from error

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
            raise ImageError(f'the model does not take it: {error}') from error

    def answers(self,
                images: Iterable[Source],
                *,
                batch_size: int | None = None,
                tile: int | None = None,
                overlap: float | None = None) -> Iterator[Answer]:
        """What became of each image, in order; images that cannot be read do not end it.

        Images are decoded in threads beside the computation. Those whose prepared sizes are equal
        share a batch, so that answers are as for one at a time, to rounding.

        Args:
            images: Paths, images of Pillow's, or RGB values ``(H, W, 3)``; may be endless.
            batch_size: Images at a time; see :attr:`default_batch_size`.
            tile: Images with a longer side are predicted in tiles of at most this height and width;
                detectors see them as a whole too. See :mod:`.tiling`.
            overlap: Share of a tile that it has in common with the next (0.25).

        Raises:
            ValueError: If the tiles, or the size of batches, are impossible.
        """
        images = map(loaded, images)
        size = self.default_batch_size if batch_size is None else batch_size
        if size < 1:
            raise ValueError(f'a batch has at least one image, got {size}')
        if tile is None:
            if overlap is not None:
                raise ValueError('overlap is of tiles, and tile is not given')
            read = prefetched(self._read, images, workers=WORKERS, ahead=2 * size + 2)
            return self._run(read, size)
        overlap = OVERLAP if overlap is None else overlap
        tiles_of((1, 1), tile, overlap)
        return self._in_tiles(images, size, tile, overlap)

    def _in_tiles(self, images: Iterable[Source], batch_size: int, tile: int,
                  overlap: float) -> Iterator[Answer]:
        for answer in prefetched(decoded, images, workers=1, ahead=1):
            if answer.image is None:
                yield answer
                continue
            size = answer.image.shape[:2]
            views = tiles_of(size, tile, overlap)
            if len(views) > 1 and self.kind != 'labels':
                views.append(View(0, 0, *size))
            crops = (replace(answer, image=answer.image[view.slices]) for view in views)
            read = prefetched(self._prepared, crops, workers=WORKERS, ahead=2 * batch_size + 2)
            found = [(part.result, part.error) for part in self._run(read, batch_size)]
            if error := next((error for _, error in found if error), None):
                yield replace(answer, image=None, error=error)
            else:
                results = [result for result, _ in found if result is not None]
                yield replace(answer, result=merge(results, views, size))

    def _read(self, source: Source) -> Prepared:
        return self._prepared(decoded(source))

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
            return [ImageError(f'{name_of(batch[0].answer.source)}: {error}')]

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
        return instances_of(sample, with_masks=self.kind == 'masks', **shared)

    def predict_each(self, images: Iterable[Source], **options: Any) -> Iterator[Result]:
        """The results of many images, one after the other.

        Args:
            images: May be endless.
            **options: As of :meth:`answers`.

        Raises:
            ImageError: If an image cannot be read.
            ValueError: As :meth:`answers`.
        """
        if isinstance(images, SINGLE):
            raise TypeError('predict_each takes several images: predict takes one')
        for answer in self.answers(images, **options):
            if answer.error is not None:
                raise answer.error
            assert answer.result is not None  # of what was read
            yield answer.result

    @overload
    def predict(self, images: str | Path | Image.Image | np.ndarray | bytes,
                **options: Any) -> Result:
        ...

    @overload
    def predict(self, images: Iterable[Source], **options: Any) -> list[Result]:
        ...

    def predict(self, images: Any, **options: Any) -> Result | list[Result]:
        """What the model finds in an image, or in each of several.

        Args:
            images: A path, an image of Pillow's, RGB values ``(H, W, 3)`` of type uint8, or a list
                of these. mmdet and OpenCV have BGR values: turn them by ``image[..., ::-1]``.
            **options: ``batch_size``, ``tile`` and ``overlap``, as of :meth:`answers`.

        Returns:
            An :class:`Instances` or :class:`LabelMap` of an image, a list of them of several.

        Raises:
            ImageError: If an image cannot be read.
            ValueError: As :meth:`answers`.
        """
        if isinstance(images, SINGLE):
            return next(self.predict_each([images], **options))
        if not isinstance(images, Iterable):
            raise TypeError(
                "an image is a path, an image of Pillow's, an array or the content of a "
                f'file, got {type(images).__name__}')
        return list(self.predict_each(images, **options))
