"""A detector or segmenter with its weights, its classes and its test pipeline."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import nn

from .batches import in_batches, prefetched
from .drawing import Colour
from .images import ImageError, Source, read_image
from .results import Instances, LabelMap, Result

WORKERS = 2  # threads that decode


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


class Model:
    """A detector or segmenter that predicts; :func:`load` makes it.

    Attributes:
        module: mmdet's or mmseg's model, in evaluation mode.
        cfg: Its config.
        classes: The names of its classes.
        palette: A colour of each, ``(red, green, blue)``.
        kind: ``'masks'`` (instances with masks), ``'boxes'`` (instances without) or ``'labels'``.
        source: Where its weights are from.
    """

    def __init__(self, module: nn.Module, cfg: Config, classes: tuple[str, ...],
                 palette: tuple[Colour, ...], source: str) -> None:
        self.module, self.cfg, self.source = module, cfg, source
        self.classes, self.palette = classes, palette
        self.kind = kind_of(module)
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

    def prepare(self, image: np.ndarray) -> dict[str, Any]:
        """What the test pipeline of the config makes of an image.

        Args:
            image: RGB values, ``(H, W, 3)``, uint8.

        Returns:
            ``inputs``, ``(3, h, w)``, and ``data_samples``.

        Raises:
            ImageError: If the pipeline cannot take it.
        """
        try:
            return self.pipeline(dict(img=np.ascontiguousarray(image[..., ::-1]), img_id=0))
        except (ValueError, TypeError, AssertionError, ZeroDivisionError) as error:
            height, width = image.shape[:2]
            raise ImageError(f'an image of {height} x {width} pixels does not pass the test '
                             f'pipeline: {error}') from error

    def run(self, batch: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """The samples of mmdet or mmseg for images that :meth:`prepare` prepared."""
        data = {key: [item[key] for item in batch] for key in ('inputs', 'data_samples')}
        with torch.inference_mode():
            return self.module.test_step(data)

    def answers(self, images: Iterable[Source], *, batch_size: int | None = None) -> \
            Iterator[Answer]:
        """What became of each image, in order; images that cannot be read do not end it.

        Images are decoded in threads beside the computation. Those whose prepared sizes are equal
        share a batch, so that answers are as for one at a time.

        Args:
            images: Paths, images of Pillow's, or RGB values ``(H, W, 3)``; may be endless.
            batch_size: Images at a time; see :attr:`default_batch_size`.
        """
        size = batch_size or self.default_batch_size
        prepared = prefetched(self._read, images, workers=WORKERS, ahead=2 * size + 2)
        for item, result in in_batches(
                self._results, prepared, shape_of=lambda item: item.shape, batch_size=size):
            yield Answer(item.answer.source, item.answer.image, result, item.answer.error)

    def _read(self, source: Source) -> Prepared:
        try:
            image = read_image(source)
            return Prepared(Answer(source, image), self.prepare(image))
        except ImageError as error:
            return Prepared(Answer(source, error=error))

    def _results(self, batch: list[Prepared]) -> list[Result]:
        samples = self.run([item.data for item in batch if item.data is not None])
        return [
            self.result(sample, item.answer.source)
            for item, sample in zip(batch, samples, strict=True)
        ]

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

    def predict_each(self, images: Iterable[Source], *, batch_size: int | None = None) -> \
            Iterator[Result]:
        """The results of many images, one after the other; see :meth:`answers`.

        Raises:
            ImageError: If an image cannot be read.
        """
        for answer in self.answers(images, batch_size=batch_size):
            if answer.result is None:
                raise answer.error or ImageError(f'no answer for {answer.source}')
            yield answer.result

    @overload
    def predict(self, images: str | Path | Image.Image | np.ndarray) -> Result:
        ...

    @overload
    def predict(self, images: Iterable[Source], *, batch_size: int | None = None) -> list[Result]:
        ...

    def predict(self, images: Any, *, batch_size: int | None = None) -> Result | list[Result]:
        """What the model finds in an image, or in each of several.

        Args:
            images: A path, an image of Pillow's, RGB values ``(H, W, 3)`` of type uint8, or a list
                of these. mmdet and OpenCV have BGR values: turn them by ``image[..., ::-1]``.
            batch_size: Images at a time; see :attr:`default_batch_size`.

        Returns:
            An :class:`Instances` or :class:`LabelMap` of an image, a list of them of several.

        Raises:
            ImageError: If an image cannot be read.
        """
        if isinstance(images, (str, Path, Image.Image, np.ndarray, bytes)):
            return next(self.predict_each([images]))
        return list(self.predict_each(images, batch_size=batch_size))


def kind_of(module: nn.Module) -> str:
    """What a model answers: ``'masks'``, ``'boxes'`` or ``'labels'``.

    Raises:
        ValueError: If it is a panoptic one.
    """
    if hasattr(module, 'decode_head'):
        return 'labels'
    fusion = getattr(module, 'panoptic_fusion_head', None)
    if fusion is not None:
        if not fusion.test_cfg.get('instance_on', False):
            raise ValueError('the model answers things and stuff (panoptic), and no instances')
        return 'masks'
    for holder in (module, getattr(module, 'roi_head', None)):
        if getattr(holder, 'mask_head', None) is not None:
            return 'masks'
    head = getattr(module, 'bbox_head', None)
    return 'masks' if any('mask_head' in name for name, _ in named_children(head)) else 'boxes'


def named_children(module: nn.Module | None) -> list[tuple[str, nn.Module]]:
    return [] if module is None else list(module.named_children())


def instances_of(sample: BaseDataElement, *, with_masks: bool, **shared: Any) -> Instances:
    """mmdet's instances as ours, the most certain first."""
    from mmdet.structures.mask import encode_mask_results
    found = sample.pred_instances
    scores = found.scores.float().cpu().numpy()
    order = np.argsort(-scores, kind='stable')
    masks = None
    if with_masks:
        codes = found.masks
        codes = encode_mask_results(codes) if isinstance(codes, torch.Tensor) else codes
        masks = tuple(
            dict(size=list(codes[i]['size']), counts=codes[i]['counts'].decode()) for i in order)
    return Instances(
        size=tuple(sample.ori_shape[:2]),
        boxes=found.bboxes.float().cpu().numpy().reshape(-1, 4)[order],
        scores=scores[order],
        labels=found.labels.cpu().numpy().astype(np.int64)[order],
        masks=masks,
        **shared)


def pipeline_for_arrays(cfg: Config) -> Compose:
    """The test pipeline of a config, for images that are decoded already.

    Raises:
        ValueError: If the config has none, or it loads no image.
    """
    dataset = (cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}).get('dataset')
    while dataset and 'pipeline' not in dataset and 'dataset' in dataset:  # wrapped
        dataset = dataset.dataset
    steps = deepcopy((dataset or {}).get('pipeline') or cfg.get('test_pipeline') or [])
    loads = [step for step in steps if kind_of_step(step) == 'LoadImageFromFile']
    if not loads:
        raise ValueError('the config has no test pipeline that begins with LoadImageFromFile')
    library = cfg.default_scope
    settings = {key: loads[0][key] for key in ('to_float32', ) if key in loads[0]}
    settings['type'] = f'{library}.LoadImageFromNDArray'
    kept = [settings if step is loads[0] else step for step in steps
            if 'LoadAnnotations' not in kind_of_step(step)]  # yapf: disable
    with DefaultScope.overwrite_default_scope(library):
        return Compose(kept)


def kind_of_step(step: dict[str, Any]) -> str:
    """The name of a step of a pipeline, without its library."""
    kind = step['type']
    return (kind if isinstance(kind, str) else kind.__name__).rpartition('.')[2]
