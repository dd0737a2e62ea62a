"""Classes: do config, annotation files and heads agree?"""
from __future__ import annotations

import os
from collections.abc import Iterator

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS

from colonnade.common.name_lists import format_names
from colonnade.common.storage import exists, is_readable, local_copy

from ..classes import get_class_count_key, get_num_classes, iter_dataset_heads
from ..dataset_paths import (find_datasets, get_dataset_classes, get_dataset_paths,
                             read_category_names, read_names_of_classes)
from ..findings import Finding
from ..registries import find_class

#: words in the types of datasets of which heads do not need to know every class
OTHER_COUNTS = ('Panoptic', 'MOTChallenge')


def find_class_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield classes of the datasets that heads or annotation files do not have."""
    heads = list(iter_dataset_heads(cfg.model))
    mismatches: dict[tuple[str, int, str, int], list[str]] = {}
    for name, dataset in find_datasets(cfg, dataloaders):
        place, metainfo = f'{name}.metainfo.classes', dataset.get('metainfo') or {}
        path = metainfo.get('classes')
        if isinstance(path, str) and (os.sep in path or path.endswith('.txt')) and \
                not os.path.isfile(path):
            yield Finding('class-file', f'{place}: file {path} does not exist', (place, ))
            continue
        classes, kind = get_dataset_classes(dataset), str(dataset.type)
        legacy = None if path else metainfo.get('CLASSES')
        if legacy and read_names_of_classes(legacy) != classes:
            yield Finding('misnamed-classes', f'nothing reads {name}.metainfo.CLASSES',
                          (f'{name}.metainfo.CLASSES', ), 'did you mean classes?')
            continue
        if classes is None or any(word in kind for word in OTHER_COUNTS):
            continue
        for head_name, head in heads:
            key, num_classes = f'{head_name}.{get_class_count_key(head)}', get_num_classes(head)
            if num_classes != len(classes):
                mismatches.setdefault((key, num_classes, kind, len(classes)), []).append(name)
        if reads_categories(dataset):
            yield from _check_categories(name, dataset, classes)
    for (key, num_classes, kind, expected), names in mismatches.items():
        yield Finding(
            'class-count',
            f'{key} is {num_classes}, but the dataset ({kind}, {", ".join(names)}) has {expected} '
            'classes', (key, *(f'{name}.metainfo.classes' for name in names)),
            f'set {key}={expected}, or metainfo.classes of the dataset')


def reads_categories(dataset: ConfigDict) -> bool:
    """Return True if a dataset reads the categories of its file as mmdet's CocoDataset does."""
    cls, coco = (find_class(kind, DATASETS) for kind in (dataset.type, 'mmdet.CocoDataset'))
    is_coco = isinstance(cls, type) and coco is not None and issubclass(cls, coco)
    return (is_coco and vars(coco)['load_data_list'] is cls.load_data_list
            and cls.COCOAPI.get_cat_ids is coco.COCOAPI.get_cat_ids)


def _check_categories(name: str, dataset: ConfigDict, classes: tuple[str,
                                                                     ...]) -> Iterator[Finding]:
    """Yield classes that a COCO file does not have, or has in another order.

    mmdet numbers those categories of the file that are classes, in the order of the file. A missing
    one would shift the labels of all that follow.
    """
    ann_file = next(iter(get_dataset_paths(dataset)), '')
    settings = dataset.get('backend_args')
    categories = None
    if ann_file and is_readable(ann_file, settings) and exists(ann_file, settings):
        with local_copy(ann_file, settings) as local:
            categories = read_category_names(local) if os.path.isfile(local) else None
    if categories is None:
        return
    places = f'{name}.metainfo.classes', f'{name}.ann_file'
    missing = [each for each in classes if each not in categories]
    ordered = [each for each in categories if each in classes]
    if missing:
        yield Finding(
            'class-names', f'{places[0]} has {format_names(missing, 8)}, but the categories of '
            f'{ann_file} are {format_names(categories, 8)}', places)
    elif ordered != list(classes):
        yield Finding(
            'class-names', f'{places[0]} must be in the order of the categories of {ann_file}: '
            f'{format_names(ordered, 8)}', places)
