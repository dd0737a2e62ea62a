"""What files of annotations may bring in: images of the data set, and no code.

Configs are code, and say where data lie. Annotations may come from strangers.
"""
from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.settings.dataset_paths import find_datasets, paths_of_setting
from colonnade.settings.findings import Finding

PICKLES = ('.pkl', '.pickle')
#: keys of data_prefix for the folders of each
IMAGES, LABEL_MAPS = ('img', 'img_path'), ('seg', 'seg_map_path')
EXAMPLES = 3  # of paths, in an error


def check_pickles(cfg: Config, dataloaders: tuple[str, ...], *, trust: bool) -> None:
    """Raise a ValueError for annotations or proposals that are pickled, unless they are trusted.

    Reading them runs whatever their maker put in.

    Args:
        cfg: A config.
        dataloaders: Those that will be read.
        trust: Whether the user trusts who made them.
    """
    if trust:
        return
    for name, dataset in find_datasets(cfg, dataloaders):
        for key in ('ann_file', 'proposal_file'):
            path = dataset.get(key)
            if isinstance(path, str) and path.lower().endswith(PICKLES):
                text = f'{name}.{key}: {path} is pickled, and reading it could run any code. If ' \
                       'you trust who made it, say --trust'
                raise UserError(str(Finding('pickle', text, (f'{name}.{key}', ))))


@contextmanager
def naming_deep_files(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[None]:
    """Raise a ValueError for JSON whose brackets are nested too deeply for Python.

    Args:
        cfg: A config.
        dataloaders: Those whose data sets are loaded within the block.
    """
    try:
        yield
    except RecursionError as error:
        files = [path for _, dataset in find_datasets(cfg, dataloaders)
                 for path in paths_of_setting(dataset.get('ann_file'), dataset)]  # yapf: disable
        raise UserError(f'{" or ".join(files)}: brackets are nested too deeply, annotations have '
                        'no such JSON') from error


def image_paths(datasets: Iterable[Any], *, allow_external_files: bool = True) -> Iterator[str]:
    """Yield the paths of all images of mmengine's datasets, which say them; skip other datasets.

    Each entry is looked at once, and none is kept: there may be a million.

    Args:
        datasets: Loaded datasets.
        allow_external_files: Whether annotations may name files anywhere. If not, it is in ``data_root``
            and ``data_prefix`` only, unless a dataset has neither. Links are not followed:
            whoever may make them may copy files too.

    Raises:
        UserError: After the last image of a dataset whose annotations name files that they may not.
    """
    for dataset in datasets:
        if not isinstance(dataset, BaseDataset):
            continue
        folders = {} if allow_external_files else {
            'img_path': find_allowed_folders(dataset, IMAGES),
            'seg_map_path': find_allowed_folders(dataset, LABEL_MAPS)
        }
        outside: list[str] = []
        for index in range(len(dataset)):
            info = dataset.get_data_info(index)
            outside += [
                info[key] for key, allowed in folders.items()
                if isinstance(info.get(key), str) and is_outside(info[key], allowed)
            ]
            if isinstance(info.get('img_path'), str):
                yield info['img_path']
        if outside:
            raise UserError(str(describe_outside(dataset, outside)))


def describe_outside(dataset: BaseDataset, paths: list[str]) -> Finding:
    """Return what is wrong with paths that lead out of the folders of a dataset, and what to do."""
    number = '1 file' if len(paths) == 1 else f'{len(paths)} files'
    text = f'{dataset.ann_file or "the data set"} names {number} outside of ' \
           f'{dataset.data_root or "its folders"}: {format_names(paths, EXAMPLES)}. If they ' \
           'are meant, say --allow-external-files'
    return Finding('outside', text, tuple(paths))


def find_outside_paths(dataset: BaseDataset, paths: Iterable[str],
                       prefixes: tuple[str, ...]) -> list[str]:
    """Those of the paths that lead out of the folders of a data set."""
    folders = find_allowed_folders(dataset, prefixes)
    return [path for path in paths if is_outside(path, folders)]


def is_outside(path: str, folders: tuple[str, ...]) -> bool:
    """Return True if a path leads out of folders that end in ``/``; never if there are none."""
    return bool(folders) and not f'{normalize_path(path)}/'.startswith(folders)


def find_allowed_folders(dataset: BaseDataset, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that files of a kind may lie in, ending in ``/``; none if none is named."""
    named = [dataset.data_root, *(dataset.data_prefix.get(prefix) for prefix in prefixes)]
    return tuple(f'{normalize_path(each)}/' for each in named if each)


def normalize_path(path: str) -> str:
    """A path from the root on, or a URL, without ``..``; no slash at its end."""
    return posixpath.normpath(path if '://' in path else os.path.abspath(path)).rstrip('/')
