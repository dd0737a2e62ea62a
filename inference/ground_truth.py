"""What the annotations of a data set say of its images, in the form of answers."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, Protocol

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.storage import content
from colonnade.datasets.rle import encode_segmentation, make_json_rle

from .drawing import Colour
from .model import Model
from .results import Instances, LabelMap, Result

UNLABELLED = 255


class Known(Protocol):
    """What is known of annotations: their kind as of a :class:`Model`, and the classes."""

    @property
    def kind(self) -> str:
        """``'masks'``, ``'boxes'`` or ``'labels'``."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def palette(self) -> tuple[Colour, ...]:
        """A colour of each."""


def truth_of(model: Model, limit: int) -> Iterator[tuple[str, Result]]:
    """The first images of the data set that a model is tested on, each with its annotations.

    Args:
        model: Its config names the data set.
        limit: Images at most.

    Yields:
        The path of an image, and instances of score 1 or a label map. Unlabelled pixels are in the
        label map as a class of their own, the last.

    Raises:
        OSError: If a file of the data set is missing.
        ValueError: If the config has no data set to test on.
    """
    dataset = test_set(model.cfg)
    for index in range(min(limit, len(dataset))):
        found = dataset.get_data_info(index)
        path = found['img_path']
        yield path, (
            label_map(model, found, path) if model.kind == 'labels' else instances(
                model, found, path))


def test_set(cfg: Config) -> Any:
    """The data set of a config's ``test_dataloader``."""
    settings = (cfg.get('test_dataloader') or {}).get('dataset')
    if settings is None:
        raise UserError('the config has no test_dataloader')
    with DefaultScope.overwrite_default_scope(cfg.default_scope), redirect_stdout(StringIO()):
        return DATASETS.build(settings)  # pycocotools prints its progress


def instances(model: Known, found: dict[str, Any], path: str) -> Instances:
    """The annotated objects of an image, without crowds and those to ignore."""
    size = found['height'], found['width']
    objects = [item for item in found['instances'] if not item.get('ignore_flag')]
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


def label_map(model: Known, found: dict[str, Any], path: str) -> LabelMap:
    """The annotated label map of an image, numbered as the model's classes."""
    with Image.open(content(found['seg_map_path'])) as image:
        labels = np.array(image).astype(np.int64)
    if found.get('reduce_zero_label'):
        labels = np.where((labels == 0) | (labels == UNLABELLED), UNLABELLED, labels - 1)
    given = labels.copy()
    for old, new in (found.get('label_map') or {}).items():
        labels[given == old] = new
    none = len(model.classes)
    return LabelMap(
        size=labels.shape,
        classes=(*model.classes, 'unlabelled'),
        palette=(*model.palette, (0, 0, 0)),
        labels=np.where(labels < none, labels, none).astype(np.uint16 if none > 254 else np.uint8),
        source=path)
