"""Where the data sets of a config lie, and what classes they have."""
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
PATH_KEYS = ('data_root', 'ann_file', 'data_prefix')  # of data sets
EVALUATORS = ('val_evaluator', 'test_evaluator')


def evaluators(cfg: Config, keys: tuple[str, ...] = EVALUATORS) -> Iterator[ConfigDict]:
    """The metrics of validation and test, also those of an evaluator that a config names itself."""
    for key in keys:
        found = cfg.get(key) or []
        if isinstance(found, dict) and 'metrics' in found:
            found = found['metrics']
        yield from found if isinstance(found, (list, tuple)) else [found]


def find_datasets(cfg: Config,
                  dataloaders: tuple[str, ...] = DATALOADERS) -> Iterator[tuple[str, ConfigDict]]:
    """All data sets in the dataloaders that read files, wrapped ones too, with their names."""
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


def paths_of(dataset: ConfigDict, data_root: str | None = None) -> list[str]:
    """The annotation files and the folders that a data set reads, below another root if given."""
    prefixes = dataset.get('data_prefix')
    folders = prefixes.values() if isinstance(prefixes, dict) else [prefixes]
    return [
        path for setting in (dataset.get('ann_file'), *folders)
        for path in paths_of_setting(setting, dataset, data_root)
    ]


def paths_of_setting(setting: Any, dataset: ConfigDict, data_root: str | None = None) -> list[str]:
    """The paths that a setting of a data set names: one, several, or none if it is no text."""
    root = dataset.get('data_root') if data_root is None else data_root
    paths = setting if isinstance(setting, (list, tuple)) else [setting]
    return [
        path if is_abs(path) else join_path(root or '', path) for path in paths
        if path and isinstance(path, str)
    ]


def redirect_data_root(cfg: Config, data_root: str | Path) -> None:
    """Let every data set and evaluator of ``cfg`` read below ``data_root``.

    ``data_root`` may also be the folder that the data set's own folder lies in, as
    ``ADEChallengeData2016`` does when it is unpacked. It may be a URL, or a folder of shards.

    Raises:
        FileNotFoundError: If ``data_root`` is no folder.
        OSError: If storage does not answer.
        ValueError: If the config has no data set that reads files.
    """
    datasets = [dataset for _, dataset in find_datasets(cfg)]
    if not datasets:
        raise UserError('--data-root has no effect: no data set of the config reads files')
    root = existing_root(str(data_root), datasets[0].get('backend_args'))
    moved: dict[str, str] = {}  # of all paths and roots
    for dataset in datasets:
        old, new = dataset.get('data_root') or '', _root_within(dataset, root)
        moved |= dict(zip(paths_of(dataset), paths_of(dataset, new), strict=True))
        if old:
            moved[old] = new
        dataset.data_root = new
    if isinstance(cfg.get('data_root'), str):  # a variable of our configs, which the log shows
        cfg.data_root = moved.get(cfg.data_root, cfg.data_root)
    for key in EVALUATORS:
        if cfg.get(key):
            cfg[key] = _moved(cfg[key], moved)


def existing_root(data_root: str, settings: dict[str, Any] | None) -> str:
    """``data_root`` as data sets read it, which is by another URL if it is of shards.

    Args:
        data_root: Path or URL.
        settings: ``backend_args`` of a data set.

    Raises:
        FileNotFoundError: If it is no folder.
        OSError: If storage does not answer.
    """
    if not is_remote(data_root) and not os.path.isdir(data_root):
        raise MissingFileError(f'--data-root {data_root} is no folder')
    if not exists(data_root, settings):
        raise MissingFileError(f'--data-root {data_root} does not exist, or is empty')
    if not data_root.startswith(SCHEME) and has_shards(data_root, settings):
        return sharded(data_root)
    return data_root


def _root_within(dataset: ConfigDict, data_root: str) -> str:
    """``data_root``, or the folder in it that bears the name of the data set's own root."""
    inner = join_path(data_root, Path(dataset.get('data_root') or '').name)
    missing, found = (
        any(not exists(path, dataset.get('backend_args')) for path in paths_of(dataset, root))
        for root in (data_root, inner))
    return inner if missing and not found else data_root


def _moved(value: Any, moved: dict[str, str]) -> Any:
    """``value`` with each path that is in ``moved``, or below one that is, at its new place."""
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
    """Raise a FileNotFoundError that lists all annotation files and folders that are missing."""
    missing = [
        f'  {path} ({name})' for name, dataset in find_datasets(cfg, dataloaders)
        for path in paths_of(dataset) if not exists(path, dataset.get('backend_args'))
    ]
    if missing:
        raise MissingFileError('the config reads what does not exist:\n' + '\n'.join(missing) +
                               '\n--data-root DIR says where your copy of the data set lies; '
                               'DIR holds what the config names below its data_root')


def classes_of(dataset: ConfigDict) -> tuple[str, ...] | None:
    """The classes of a data set: of its ``metainfo``, or else of its type; None if unknown."""
    metainfo = dataset.get('metainfo') or {}
    if not metainfo.get('classes'):
        metainfo = getattr(find_class(dataset.type, DATASETS), 'METAINFO', {})
    classes = metainfo.get('classes')
    return None if classes is None else names_of_classes(classes)


@file_errors()
def names_of_classes(classes: Any) -> tuple[str, ...]:
    """The names in a setting of classes, or in the file that it names, in mmengine's way.

    Raises:
        ValueError: If that file holds no text.
    """
    if isinstance(classes, str):
        try:
            classes = list_from_file(classes) if os.path.isfile(classes) else (classes, )
        except UnicodeDecodeError as error:
            raise UserError(f'metainfo.classes: {classes} is no text: {error}') from error
    return tuple(classes)


@file_errors()
def categories_of(ann_file: str | Path) -> list[str] | None:
    """The names of a COCO file's categories in its order; None if they are not found.

    Only this part of the file is parsed, which takes no time in files of hundreds of megabytes.
    """
    with open(ann_file, 'rb') as file:
        if not os.fstat(file.fileno()).st_size:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.rfind(b'"categories"')
            if at < 0:
                return None
            # a category is some hundred bytes long; LVIS has 1,203 with synonyms and definitions
            text = content[at:at + 2**22].decode(errors='replace')
    try:
        found, _ = json.JSONDecoder().raw_decode(text.partition(':')[2].lstrip())
        return [category['name'] for category in found]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
