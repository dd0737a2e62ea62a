"""Do the classes of a config, its data and its heads agree? Asked before an image is read."""
from __future__ import annotations

import os
from collections.abc import Iterator

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS

from colonnade.common.name_lists import format_names
from colonnade.common.storage import exists, is_readable, local_copy

from ..classes import heads_of_all_classes, key_of_classes, num_classes_of
from ..dataset_paths import categories_of, classes_of, find_datasets, names_of_classes, paths_of
from ..findings import Finding
from ..registries import find_class

#: data sets of which heads need not know every class
OF_OTHER_NUMBERS = ('Panoptic', 'MOTChallenge')


def class_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Classes of the data that the heads, or the files, do not have."""
    heads = list(heads_of_all_classes(cfg.model))
    differing: dict[tuple[str, int, str, int], list[str]] = {}
    for name, dataset in find_datasets(cfg, dataloaders):
        place = f'{name}.metainfo.classes'
        if (file := missing_file(dataset)) is not None:
            yield Finding('class-file', f'{place}: there is no file {file}', (place, ))
            continue
        classes, kind = classes_of(dataset), str(dataset.type)
        if is_misnamed(dataset, classes):
            yield Finding('misnamed-classes', f'nothing reads {name}.metainfo.CLASSES',
                          (f'{name}.metainfo.CLASSES', ), 'did you mean classes?')
            continue
        if classes is None or any(other in kind for other in OF_OTHER_NUMBERS):
            continue
        for head_name, head in heads:
            key, number = f'{head_name}.{key_of_classes(head)}', num_classes_of(head)
            if number != len(classes):
                differing.setdefault((key, number, kind, len(classes)), []).append(name)
        if reads_categories(dataset):
            yield from category_problems(name, dataset, classes)
    for (key, number, kind, expected), names in differing.items():
        yield Finding(
            'class-count',
            f'{key} is {number}, and the data set ({kind}, {", ".join(names)}) has {expected} '
            'classes', (key, *(f'{name}.metainfo.classes' for name in names)),
            f'set {key}={expected}, or metainfo.classes of the data')


def missing_file(dataset: ConfigDict) -> str | None:
    """The file of classes that a data set names, if it is not there; None if it names none."""
    given = (dataset.get('metainfo') or {}).get('classes')
    if not isinstance(given, str) or not (os.sep in given or given.endswith('.txt')):
        return None
    return None if os.path.isfile(given) else given


def is_misnamed(dataset: ConfigDict, classes: tuple[str, ...] | None) -> bool:
    """Whether a data set is to have other classes, by the name that the setting had once."""
    metainfo = dataset.get('metainfo') or {}
    given = None if metainfo.get('classes') else metainfo.get('CLASSES')
    return bool(given) and names_of_classes(given) != classes


def reads_categories(dataset: ConfigDict) -> bool:
    """Whether a data set looks for its classes among a file's categories as mmdet's COCO does."""
    cls, coco = (find_class(kind, DATASETS) for kind in (dataset.type, 'mmdet.CocoDataset'))
    is_coco = isinstance(cls, type) and coco is not None and issubclass(cls, coco)
    return is_coco and vars(coco)['load_data_list'] is cls.load_data_list


def category_problems(name: str, dataset: ConfigDict, classes: tuple[str,
                                                                     ...]) -> Iterator[Finding]:
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
    place = f'{name}.metainfo.classes'
    missing = [each for each in classes if each not in categories]
    if missing:
        yield Finding(
            'class-names',
            f'{place} has {format_names(missing, 8)}, and the categories of {ann_file} are '
            f'{format_names(categories, 8)}', (place, f'{name}.ann_file'))
    elif [each for each in categories if each in classes] != list(classes):
        yield Finding(
            'class-names', f'{place} must be in the order of the categories of {ann_file}: '
            f'{format_names([each for each in categories if each in classes], 8)}',
            (place, f'{name}.ann_file'))
