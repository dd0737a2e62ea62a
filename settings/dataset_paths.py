"""Paths and classes of the datasets of a config."""
from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.fileio import join_path, list_from_file
from mmengine.registry import DATASETS
from mmengine.utils import is_abs

from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.common.storage.file_access import exists, is_remote
from colonnade.common.storage.shard_index import has_shards
from colonnade.common.storage.shard_reader import SCHEME, sharded

from .registries import find_class

DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
PATH_KEYS = ('data_root', 'ann_file', 'data_prefix')
EVALUATORS = ('val_evaluator', 'test_evaluator')


def iter_evaluators(cfg: Config, keys: tuple[str, ...] = EVALUATORS) -> Iterator[ConfigDict]:
    """Yield the metrics of validation and test, also those within a custom evaluator."""
    for key in keys:
        metrics = cfg.get(key) or []
        if isinstance(metrics, dict) and 'metrics' in metrics:
            metrics = metrics['metrics']
        yield from metrics if isinstance(metrics, (list, tuple)) else [metrics]


def find_datasets(cfg: Config,
                  dataloaders: tuple[str, ...] = DATALOADERS) -> Iterator[tuple[str, ConfigDict]]:
    """Yield the keys and settings of all datasets that read files, including wrapped ones."""
    for key in dataloaders:
        yield from _datasets_below(key, cfg.get(key))


def _datasets_below(name: str, value: Any) -> Iterator[tuple[str, ConfigDict]]:
    if isinstance(value, dict):
        if any(key in value for key in PATH_KEYS):
            yield name, value
        for key, item in value.items():
            if key != 'pipeline':
                yield from _datasets_below(f'{name}.{key}', item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _datasets_below(f'{name}[{index}]', item)


def get_dataset_paths(dataset: ConfigDict, data_root: str | None = None) -> list[str]:
    """Return the annotation files and folders of a dataset, below ``data_root`` if given."""
    prefixes = dataset.get('data_prefix')
    folders = prefixes.values() if isinstance(prefixes, dict) else [prefixes]
    return [
        path for setting in (dataset.get('ann_file'), *folders)
        for path in get_setting_paths(setting, dataset, data_root)
    ]


def get_setting_paths(setting: Any, dataset: ConfigDict, data_root: str | None = None) -> list[str]:
    """Return the paths in a dataset setting: one, several, or none if it is not a string."""
    root = dataset.get('data_root') if data_root is None else data_root
    paths = setting if isinstance(setting, (list, tuple)) else [setting]
    return [
        path if is_abs(path) else join_path(root or '', path) for path in paths
        if path and isinstance(path, str)
    ]


def redirect_data_root(cfg: Config, data_root: str | Path) -> None:
    """Make every dataset and evaluator of ``cfg`` read below ``data_root``.

    Args:
        cfg: Config, modified in place.
        data_root: Directory, URL or directory of shards: the root of the dataset, or the parent of
            a directory of its name, such as ``ADEChallengeData2016``.

    Raises:
        FileNotFoundError: If ``data_root`` is not a directory.
        OSError: If remote storage does not respond.
        ValueError: If no dataset of the config reads files.
    """
    datasets = [dataset for _, dataset in find_datasets(cfg)]
    if not datasets:
        raise UserError('--data-root has no effect: no dataset of the config reads files')
    root = _resolve_root(str(data_root), datasets[0].get('backend_args'))
    moved: dict[str, str] = {}  # old path or root -> new one
    for dataset in datasets:
        old, new = dataset.get('data_root') or '', _root_within(dataset, root)
        moved |= dict(zip(get_dataset_paths(dataset), get_dataset_paths(dataset, new), strict=True))
        if old:
            moved[old] = new
        dataset.data_root = new
    if isinstance(cfg.get('data_root'), str):  # variable of shipped configs, shown in the log
        cfg.data_root = moved.get(cfg.data_root, cfg.data_root)
    for key in EVALUATORS:
        if cfg.get(key):
            cfg[key] = _moved(cfg[key], moved)


def _resolve_root(data_root: str, settings: dict[str, Any] | None) -> str:
    """Check that a root exists, and return its URL if it contains shards."""
    if not is_remote(data_root) and not os.path.isdir(data_root):
        raise MissingFileError(f'--data-root {data_root} is not a directory')
    if not exists(data_root, settings):
        raise MissingFileError(f'--data-root {data_root} does not exist or is empty')
    if not data_root.startswith(SCHEME) and has_shards(data_root, settings):
        return sharded(data_root)
    return data_root


def _root_within(dataset: ConfigDict, data_root: str) -> str:
    """Return ``data_root``, or the directory in it that has the name of the configured root."""
    inner = join_path(data_root, Path(dataset.get('data_root') or '').name)
    is_incomplete, is_inner_incomplete = (
        any(not exists(path, dataset.get('backend_args'))
            for path in get_dataset_paths(dataset, root)) for root in (data_root, inner))
    return inner if is_incomplete and not is_inner_incomplete else data_root


def _moved(value: Any, moved: dict[str, str]) -> Any:
    """Return ``value`` with each path in ``moved``, or below one of them, replaced."""
    if isinstance(value, dict):
        return ConfigDict({
            key: item if key == 'type' else _moved(item, moved)
            for key, item in value.items()
        })
    if isinstance(value, list):
        return [_moved(item, moved) for item in value]
    if isinstance(value, str) and value:
        for old, new in sorted(moved.items(), key=lambda pair: -len(pair[0])):
            if Path(value) == Path(old):
                return new
            if Path(value).is_relative_to(old):
                return join_path(new, str(Path(value).relative_to(old)))
    return value


def check_dataset(cfg: Config, dataloaders: tuple[str, ...]) -> None:
    """Raise a FileNotFoundError that lists all missing annotation files and folders."""
    missing = [
        f'  {path} ({name})' for name, dataset in find_datasets(cfg, dataloaders)
        for path in get_dataset_paths(dataset) if not exists(path, dataset.get('backend_args'))
    ]
    if missing:
        raise MissingFileError('the config has paths that do not exist:\n' + '\n'.join(missing) +
                               '\nPass --data-root DIR if your copy of the dataset is elsewhere; '
                               'DIR replaces the data_root of the config')


def get_dataset_classes(dataset: ConfigDict) -> tuple[str, ...] | None:
    """Return the classes in the ``metainfo`` of a dataset or of its type, or None if unknown."""
    classes = get_dataset_metainfo(dataset).get('classes')
    return None if classes is None else read_names_of_classes(classes)


def get_dataset_metainfo(dataset: ConfigDict) -> dict[str, Any]:
    """Return the ``metainfo`` of a dataset if it has classes, else that of its type."""
    metainfo = dataset.get('metainfo') or {}
    if metainfo.get('classes'):
        return metainfo
    return getattr(find_class(dataset.type, DATASETS), 'METAINFO', {})


@file_errors()
def read_names_of_classes(classes: Any) -> tuple[str, ...]:
    """Return the names in a setting of classes, or in its file, as mmengine does.

    Raises:
        ValueError: If the file is not a text file.
    """
    if isinstance(classes, str):
        try:
            classes = list_from_file(classes) if os.path.isfile(classes) else (classes, )
        except UnicodeDecodeError as error:
            raise UserError(f'metainfo.classes: {classes} is not a text file: {error}') from error
    return tuple(classes)


def read_category_names(ann_file: str | Path) -> list[str] | None:
    """Return the category names of a COCO file in its order, or None if there are none."""
    categories = read_categories(ann_file)
    return None if categories is None else [category['name'] for category in categories]


@file_errors()
def read_categories(ann_file: str | Path) -> list[dict[str, Any]] | None:
    """Return the categories of a COCO file, which have names, or None if there are none.

    Only this part is parsed, which is fast for files of hundreds of megabytes.
    """
    with open(ann_file, 'rb') as file:
        if not os.fstat(file.fileno()).st_size:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.rfind(b'"categories"')
            if start < 0:
                return None
            # 4 MiB suffice for the 1,203 categories of LVIS with synonyms and definitions.
            text = content[start:start + 2**22].decode(errors='replace')
    try:
        categories, _ = json.JSONDecoder().raw_decode(text.partition(':')[2].lstrip())
        return categories if all('name' in category for category in categories) else None
    except (ValueError, TypeError, RecursionError):
        return None
