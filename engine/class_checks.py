"""Do the classes of a config, its data and its heads agree? Asked before an image is read."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS

from .classes import OTHER_CLASSES, class_heads, key_of_classes, num_classes_of
from .data_sources import categories_of, classes_of, find_datasets, paths_of
from .registries import find_class
from .storage import exists, is_readable, local_copy

SAMPLE = 50  # label maps of a data set that are read
#: data sets of which heads need not know every class
OF_OTHER_NUMBERS = ('Panoptic', 'MOTChallenge')


def class_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[str]:
    """Classes of the data that the heads, or the files, do not have.

    Args:
        cfg: Of a detector or segmenter, on any trunk.
        dataloaders: Those that will be read.
    """
    heads = [(name, head) for name, head in class_heads(cfg.model)
             if not head.get('class_agnostic') and head.get('type') not in OTHER_CLASSES]
    for name, dataset in find_datasets(cfg, dataloaders):
        classes, kind = classes_of(dataset), str(dataset.type)
        if classes is None or any(other in kind for other in OF_OTHER_NUMBERS):
            continue
        for head_name, head in heads:
            key, number = f'{head_name}.{key_of_classes(head)}', num_classes_of(head)
            if number != len(classes):
                yield (f'{key} is {number}, and the data set ({dataset.type}) has {len(classes)} '
                       f'classes: set {key}={len(classes)}, or metainfo.classes of the data')
        if reads_categories(dataset):
            yield from category_problems(name, dataset, classes)


def reads_categories(dataset: ConfigDict) -> bool:
    """Whether a data set looks for its classes among a file's categories as mmdet's COCO does."""
    cls, coco = (find_class(kind, DATASETS) for kind in (dataset.type, 'mmdet.CocoDataset'))
    is_coco = isinstance(cls, type) and coco is not None and issubclass(cls, coco)
    return is_coco and vars(coco)['load_data_list'] is cls.load_data_list


def category_problems(name: str, dataset: ConfigDict, classes: tuple[str, ...]) -> Iterator[str]:
    """Classes of a config that its COCO file has not, or has in another order.

    mmdet counts the file's categories that are classes, in the file's order: a missing one would
    shift the labels of all behind it.
    """
    ann_file = next(iter(paths_of(dataset)), '')  # the first, if there is one
    settings = dataset.get('backend_args')
    categories = None
    if ann_file and is_readable(ann_file, settings) and exists(ann_file, settings):
        with local_copy(ann_file, settings) as local:
            categories = categories_of(local) if os.path.isfile(local) else None
    if categories is None:
        return
    missing = [each for each in classes if each not in categories]
    if missing:
        yield (f'{name}.metainfo.classes has {shortened(missing)}, and the categories of '
               f'{ann_file} are {shortened(categories)}')
    elif [each for each in categories if each in classes] != list(classes):
        yield (f'{name}.metainfo.classes must be in the order of the categories of {ann_file}: '
               f'{shortened([each for each in categories if each in classes])}')


def shortened(names: Sequence[Any], most: int = 8) -> str:
    """Some of many names."""
    rest = f' and {len(names) - most} more' if len(names) > most else ''
    return ', '.join(map(str, names[:most])) + rest


def label_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[str]:
    """Labels in some of the label maps that are beyond the classes of a data set of mmseg.

    Training would fail at the first of them, on a GPU without naming it.

    Args:
        cfg: Of a segmenter; nothing is found for a detector.
        dataloaders: Those that will be read.
    """
    base = find_class('mmseg.BaseSegDataset', DATASETS)
    for name, dataset in find_datasets(cfg, dataloaders):
        cls = find_class(dataset.type, DATASETS)
        load, classes = loader_of_labels(dataset), classes_of(dataset)
        if (base is None or not isinstance(cls, type) or not issubclass(cls, base) or load is None
                or classes is None or not are_there(dataset)):
            continue
        ignored = {dataset.get('ignore_index', 255), *ignored_labels(cfg)}
        for info in sample_of(dataset):
            try:
                labels = np.flatnonzero(np.bincount(load(dict(info))['gt_seg_map'].ravel()))
            except OSError as error:
                yield f'{name}: {info["seg_map_path"]} cannot be read: {error}'
                break
            beyond = sorted(set(labels[labels >= len(classes)].tolist()) - ignored)
            if beyond:
                yield (f'{name}: {info["seg_map_path"]} has label {shortened(beyond)}, and the '
                       f'config has {len(classes)} classes ({shortened(list(classes))}), which are '
                       f'labels 0 to {len(classes) - 1}{shifted(info)}')
                break


def are_there(dataset: ConfigDict) -> bool:
    """Whether all paths of a data set are where they can be looked for."""
    settings = dataset.get('backend_args')
    return all(is_readable(path, settings) and exists(path, settings) for path in paths_of(dataset))


def sample_of(dataset: ConfigDict) -> list[dict[str, Any]]:
    """What a data set of mmseg knows of some of its images, spread over all."""
    found = DATASETS.build(dict(dataset, lazy_init=True, pipeline=[])).load_data_list()
    return found[::max(1, len(found) // SAMPLE)][:SAMPLE]


def ignored_labels(cfg: Config) -> set[int]:
    """The labels that heads do not learn from."""
    return {255} | {head['ignore_index'] for _, head in class_heads(cfg.model)
                    if isinstance(head.get('ignore_index'), int)}  # yapf: disable


def loader_of_labels(dataset: ConfigDict) -> Any:
    """The step of a data set's pipeline that loads label maps; None if there is none."""
    steps = dataset.get('pipeline') or []
    loader = next((step for step in steps if 'LoadAnnotations' in str(step.get('type'))), None)
    return None if loader is None else TRANSFORMS.build(dict(loader))


def shifted(info: dict[str, Any]) -> str:
    """What was done to labels when they were loaded, to be compared with the file."""
    return ', after reduce_zero_label took 1 from each' if info.get('reduce_zero_label') else ''
