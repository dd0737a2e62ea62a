"""Classes: do config, annotation files and heads agree?"""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS

from colonnade.common.name_lists import format_names
from colonnade.common.storage import exists, is_readable, local_copy

from ..classes import get_class_count_key, get_num_classes, iter_dataset_heads
from ..dataset_paths import (find_datasets, get_dataset_classes, get_dataset_metainfo,
                             get_dataset_paths, read_categories, read_names_of_classes)
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
            yield Finding('misnamed-classes', f'{name}.metainfo.CLASSES has no effect',
                          (f'{name}.metainfo.CLASSES', ), 'did you mean classes?')
            continue
        if classes is not None and 'Panoptic' in kind:
            yield from _check_panoptic_classes(name, dataset, classes, heads)
        if classes is None or any(word in kind for word in OTHER_COUNTS):
            continue
        for head_name, head in heads:
            key, num_classes = f'{head_name}.{get_class_count_key(head)}', get_num_classes(head)
            if num_classes != len(classes):
                mismatches.setdefault((key, num_classes, kind, len(classes)), []).append(name)
        if reads_categories(dataset) and (categories := _read_categories(dataset)) is not None:
            yield from _check_categories(name, dataset, classes, categories)
    for (key, num_classes, kind, expected), names in mismatches.items():
        yield Finding(
            'class-count',
            f'{key} is {num_classes}, but the dataset ({kind}, {", ".join(names)}) has {expected} '
            'classes', (key, *(f'{name}.metainfo.classes' for name in names)),
            f'set {key}={expected}, or change metainfo.classes of the dataset')


def reads_categories(dataset: ConfigDict) -> bool:
    """Return True if a dataset reads the categories of its file as mmdet's CocoDataset does."""
    cls, coco = (find_class(kind, DATASETS) for kind in (dataset.type, 'mmdet.CocoDataset'))
    is_coco = isinstance(cls, type) and coco is not None and issubclass(cls, coco)
    return (is_coco and vars(coco)['load_data_list'] is cls.load_data_list
            and cls.COCOAPI.get_cat_ids is coco.COCOAPI.get_cat_ids)


def _check_panoptic_classes(name: str, dataset: ConfigDict, classes: tuple[str, ...],
                            heads: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[Finding]:
    """Yield classes of a panoptic dataset that disagree with its categories, metrics or heads.

    Heads number things first. mmdet fails at segments of categories that are not classes.
    """
    things = get_dataset_metainfo(dataset).get('thing_classes')
    place, thing_place = f'{name}.metainfo.classes', f'{name}.metainfo.thing_classes'
    if things is None or classes[:len(things)] != (things := read_names_of_classes(things)):
        yield Finding(
            'class-names', f'{place} must start with {thing_place}, '
            f'{format_names(things or ["none"], 8)}, got {format_names(classes, 8)}',
            (place, thing_place))
        return
    categories = _read_categories(dataset) if reads_categories(dataset) else None
    if categories is not None:
        yield from _check_categories(name, dataset, classes, categories)
        own = tuple(each['name'] for each in categories
                    if each['name'] in classes and each.get('isthing'))  # yapf: disable
        others = [each['name'] for each in categories if each['name'] not in classes]
        if others:
            yield Finding(
                'class-names', f'{place} does not have {format_names(others, 8)}, which '
                'are categories in its annotations', (place, f'{name}.ann_file'))
        elif set(own) != set(things):
            yield Finding(
                'class-names', f'{thing_place} has {format_names(things, 8)}, but the categories '
                f'with isthing=1 are {format_names(own, 8) or "none"}',
                (thing_place, f'{name}.ann_file'))
    expected = dict(num_things_classes=len(things), num_stuff_classes=len(classes) - len(things))
    for head_name, head in heads:
        for key, number in expected.items():
            if expected.keys() <= head.keys() and head[key] != number:
                yield Finding('class-count',
                              f'{head_name}.{key} is {head[key]}, but {name} has {number}',
                              (f'{head_name}.{key}', place), f'set {head_name}.{key}={number}')


def _read_categories(dataset: ConfigDict) -> list[dict[str, Any]] | None:
    """Return the categories of an annotation file, or None if it cannot be read."""
    ann_file, settings = next(iter(get_dataset_paths(dataset)), ''), dataset.get('backend_args')
    if not (ann_file and is_readable(ann_file, settings) and exists(ann_file, settings)):
        return None
    with local_copy(ann_file, settings) as local:
        return read_categories(local) if os.path.isfile(local) else None


def _check_categories(name: str, dataset: ConfigDict, classes: tuple[str, ...],
                      content: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield classes that a COCO file does not have, or has in another order.

    mmdet numbers those categories of the file that are classes, in the order of the file. A missing
    one would shift the labels of all that follow.
    """
    ann_file = get_dataset_paths(dataset)[0]
    categories = [category['name'] for category in content]
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
