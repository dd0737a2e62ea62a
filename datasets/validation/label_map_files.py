"""Label maps of mmseg's data sets: those that training cannot take, or takes for something else."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from mmcv.transforms import LoadAnnotations
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS

from colonnade.common.name_lists import format_names
from colonnade.common.storage import content as content_of
from colonnade.common.storage import exists, is_readable
from colonnade.settings.classes import class_heads
from colonnade.settings.dataset_paths import classes_of, find_datasets, paths_of
from colonnade.settings.findings import Finding
from colonnade.settings.pipeline_steps import loads_annotations
from colonnade.settings.registries import find_class

from .image_files import OtherLabelsError, OtherSizeError, labels_of, reading_fault

SAMPLE = 50  # label maps of a data set that are read before each training
IGNORED = 255  # the label that mmseg leaves out of losses and metrics


@dataclass(frozen=True)
class Labels:
    """How a data set reads label maps, and what may be in them.

    Attributes:
        load: The step of the pipeline that reads them.
        classes: Names of the labels, from 0.
        ignored: Labels that are not learnt from.
        settings: ``backend_args`` of the data set.
        as_they_are: Whether the step is mmseg's own, which takes gray pixels for labels.
        color_type: As mmcv's step loads the images.
    """
    load: Callable[[dict[str, Any]], dict[str, Any]]
    classes: tuple[str, ...]
    ignored: Collection[int]
    settings: dict[str, Any] | None
    as_they_are: bool
    color_type: str = 'color'


def labels_of_dataset(cfg: Config, dataset: ConfigDict) -> Labels | None:
    """How a data set of mmseg reads label maps; None if it reads none, or is none of mmseg's."""
    base = find_class('mmseg.BaseSegDataset', DATASETS)
    cls, classes = find_class(dataset.type, DATASETS), classes_of(dataset)
    step = step_of_labels(dataset)
    if (base is None or not isinstance(cls, type) or not issubclass(cls, base) or step is None
            or classes is None):
        return None
    load = TRANSFORMS.build(dict(step))
    own = find_class('mmseg.LoadAnnotations', TRANSFORMS)
    return Labels(load, classes, {dataset.get('ignore_index', IGNORED), *ignored_labels(cfg)},
                  dataset.get('backend_args'), type(load) is own,
                  dataset.pipeline[0].get('color_type', 'color'))  # yapf: disable


def label_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield an error for each dataset of mmseg with labels beyond its classes in some label maps.

    A GPU would not name the label map at which it fails. Before a training, this is left to the
    look at its data, which keeps what it found.

    Args:
        cfg: Of a segmenter; nothing is found for a detector.
        dataloaders: Those that will be read.
    """
    for name, dataset in find_datasets(cfg, dataloaders):
        labels = labels_of_dataset(cfg, dataset)
        if labels is None or not are_there(dataset):
            continue
        infos = load_infos(dataset)
        for info in spread(infos, SAMPLE):
            fault = label_map_fault(info, labels)
            if fault and fault.rule == 'unknown-label':
                yield replace(fault, message=f'{name}: {fault.message}',
                              places=(name, f'{name}.metainfo.classes'))  # yapf: disable
                break


def label_map_fault(info: dict[str, Any],
                    labels: Labels,
                    size: tuple[int, int] | None = None) -> Finding | None:
    """What is wrong with the label map of an image.

    Args:
        info: What the data set says of the image.
        labels: How it reads label maps.
        size: Width and height of the image, if they are known.
    """
    path = info['seg_map_path']
    try:
        if labels.as_they_are:
            source = content_of(path, labels.settings)
            labels_of(source if isinstance(source, BytesIO) else Path(source), size)
        found = labels.load(dict(info)).get('gt_seg_map')
    except OSError as error:
        fault = reading_fault(path, error)
        is_other = fault.rule == 'not-an-image'
        return Finding('wrong-label-map', fault.message) if is_other else fault
    except OtherSizeError as error:
        return Finding('other-label-map', f'{path} cannot be used: {error}')
    except OtherLabelsError as error:  # it is read all the same
        return Finding('wrong-label-map', f'{path} cannot be used: {error}', effect='meaning')
    except ValueError as error:
        return Finding('wrong-label-map', f'{path} cannot be used: {error}')
    except Exception as error:  # decoders and steps of others raise whatever damage leads them to
        text = f'{path} cannot be read: {type(error).__name__}: {error}'
        return Finding('wrong-label-map', text)
    if found is None:  # of a step that loads something else, depth for instance
        return None
    if found.ndim != 2 and isinstance(labels.load, LoadAnnotations):
        text = f'{path} has {found.shape[-1]} channels, a label map has one'
        return Finding('wrong-label-map', text)
    return fault_of_values(found, labels, info)


def missing_label_map(info: dict[str, Any]) -> Finding:
    """Return the finding for an image without a label map."""
    return Finding('no-label-map', f'{info["img_path"]} has no label map {info["seg_map_path"]}')


def fault_of_values(found: np.ndarray, labels: Labels, info: dict[str, Any]) -> Finding | None:
    """What is wrong with labels ``(H, W)`` as training gets them."""
    path = info['seg_map_path']
    if found.dtype == np.uint8:
        values = np.flatnonzero(np.bincount(found.ravel()))
    else:
        values = np.unique(found.astype(np.int64))  # as mmseg packs them
    wrong = values[(values < 0) | (values >= len(labels.classes))]
    beyond = sorted(set(wrong.tolist()) - set(labels.ignored))
    if beyond:
        names = format_names(list(labels.classes), 8)
        return Finding(
            'unknown-label', f'{path} has label {format_names(list(map(str, beyond)), 8)}, and the '
            f'config has {len(labels.classes)} classes ({names}), which are labels 0 to '
            f'{len(labels.classes) - 1}{shifted(info)}')
    if set(values.tolist()) <= set(labels.ignored):
        return Finding('empty-label-map', f'{path}: every pixel is ignored')
    return None


def are_there(dataset: ConfigDict) -> bool:
    """Whether all paths of a data set are where they can be looked for."""
    settings = dataset.get('backend_args')
    return all(is_readable(path, settings) and exists(path, settings) for path in paths_of(dataset))


def load_infos(dataset: ConfigDict) -> list[dict[str, Any]]:
    """What a data set knows of each image, also of those that training leaves out."""
    return build_unread(dataset).load_data_list()


def build_unread(dataset: ConfigDict) -> Any:
    """A data set that has read no file, and knows its folders."""
    return DATASETS.build(dict(dataset, lazy_init=True, pipeline=[]))


def spread(items: list[Any], most: int) -> list[Any]:
    """Some of many items, spread over all."""
    return items[::max(1, len(items) // most)][:most]


def ignored_labels(cfg: Config) -> set[int]:
    """The labels that heads do not learn from."""
    return {IGNORED} | {head['ignore_index'] for _, head in class_heads(cfg.model)
                        if isinstance(head.get('ignore_index'), int)}  # yapf: disable


def step_of_labels(dataset: ConfigDict) -> dict[str, Any] | None:
    """The step of a data set's pipeline that loads annotations; None if there is none."""
    steps = dataset.get('pipeline') or []
    return next((step for step in steps if loads_annotations(step)), None)


def shifted(info: dict[str, Any]) -> str:
    """What was done to labels when they were loaded, to be compared with the file."""
    return ', after reduce_zero_label took 1 from each' if info.get('reduce_zero_label') else ''
