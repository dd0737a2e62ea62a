"""Annotations of a dataset as results, as if a model had predicted them."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, Protocol

import numpy as np
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.storage import content
from colonnade.datasets.rle import encode_segmentation, make_json_rle
from colonnade.datasets.segment_maps import read_segment_ids

from .drawing import Color
from .model import Model
from .results import UNLABELED, Instances, LabelMap, PanopticMap, Result

IGNORED_LABEL = 255


class TaskInfo(Protocol):
    """Task and classes, as of a :class:`Model`."""

    @property
    def kind(self) -> str:
        """``'masks'``, ``'boxes'``, ``'labels'`` or ``'panoptic'``."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""

    @property
    def palette(self) -> tuple[Color, ...]:
        """Color of each class."""

    @property
    def num_things(self) -> int:
        """Number of classes of objects, which come first if there are others."""


def iter_ground_truth(model: Model, limit: int) -> Iterator[tuple[str, Result]]:
    """Yield path and annotations of the first ``limit`` images of a model's test dataset.

    Instances have score 1. Unlabeled pixels of label maps have a class of their own, the last.
    """
    settings = (model.cfg.get('test_dataloader') or {}).get('dataset')
    if settings is None:
        raise UserError('the config has no test_dataloader')
    with DefaultScope.overwrite_default_scope(model.cfg.default_scope):
        with redirect_stdout(StringIO()):  # pycocotools prints its progress.
            dataset = DATASETS.build(settings)
    build: Callable[[TaskInfo, dict[str, Any], str], Result] = dict(
        labels=build_label_map, panoptic=build_panoptic_map).get(model.kind, build_instances)
    for index in range(min(limit, len(dataset))):
        info = dataset.get_data_info(index)
        yield info['img_path'], build(model, info, info['img_path'])


def build_instances(model: TaskInfo, info: dict[str, Any], path: str) -> Instances:
    """Return the annotated objects of an image, except crowds and ignored ones."""
    size = info['height'], info['width']
    objects = [item for item in info['instances'] if not item.get('ignore_flag')]
    masks = None
    if model.kind == 'masks' and all('mask' in item for item in objects):
        masks = tuple(make_json_rle(encode_segmentation(item['mask'], size)) for item in objects)
    return Instances(
        size=size,
        classes=model.classes,
        palette=model.palette,
        boxes=np.array([item['bbox'] for item in objects], dtype=np.float32).reshape(-1, 4),
        scores=np.ones(len(objects), dtype=np.float32),
        labels=np.array([item['bbox_label'] for item in objects], dtype=np.int64),
        masks=masks,
        source=path)


def build_label_map(model: TaskInfo, info: dict[str, Any], path: str) -> LabelMap:
    """Return the annotated label map of an image, with the labels of the model."""
    with Image.open(content(info['seg_map_path'])) as image:
        labels = np.array(image).astype(np.int64)
    if info.get('reduce_zero_label'):
        labels = np.where((labels == 0) | (labels == IGNORED_LABEL), IGNORED_LABEL, labels - 1)
    stored = labels.copy()
    for old, new in (info.get('label_map') or {}).items():
        labels[stored == old] = new
    unlabeled = len(model.classes)
    return LabelMap(
        size=labels.shape,
        classes=(*model.classes, UNLABELED),
        palette=(*model.palette, (0, 0, 0)),
        labels=np.minimum(labels, unlabeled).astype(np.uint16 if unlabeled > 254 else np.uint8),
        source=path)


def build_panoptic_map(model: TaskInfo, info: dict[str, Any], path: str) -> PanopticMap:
    """Return the annotated segments of an image, including crowds."""
    with Image.open(content(info['seg_map_path'])) as image:
        ids = read_segment_ids(np.asarray(image.convert('RGB')))
    annotated = {segment['id']: segment['category'] for segment in info['segments_info']}
    values, segments = np.unique(ids, return_inverse=True)
    is_segment = np.isin(values, list(annotated))
    numbers = np.where(is_segment, np.cumsum(is_segment), 0)
    return PanopticMap(
        size=ids.shape,
        classes=model.classes,
        palette=model.palette,
        segments=numbers[segments].reshape(ids.shape).astype(np.int32),
        labels=np.array([annotated[each] for each in values[is_segment].tolist()], dtype=np.int64),
        num_things=model.num_things,
        source=path)
