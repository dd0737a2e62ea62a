"""Checks that annotation files refer only to images of the dataset, and contain no code.

Configs are trusted code that locates the data. Annotations can be from untrusted sources.
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
from colonnade.settings.dataset_paths import find_datasets, get_setting_paths
from colonnade.settings.findings import Finding

PICKLES = ('.pkl', '.pickle')
IMAGES, LABEL_MAPS = ('img', 'img_path'), ('seg', 'seg_map_path')  # keys of data_prefix
MAX_SHOWN = 3  # paths in a message


def check_pickles(cfg: Config, dataloaders: tuple[str, ...], *, trust: bool) -> None:
    """Raise a ValueError if annotations or proposals of dataloaders are pickled and not trusted.

    Reading a pickle runs any code in it.
    """
    if trust:
        return
    for name, dataset in find_datasets(cfg, dataloaders):
        for key in ('ann_file', 'proposal_file'):
            path = dataset.get(key)
            if isinstance(path, str) and path.lower().endswith(PICKLES):
                text = f'{name}.{key}: {path} is pickled, and reading it can run any code: pass ' \
                       '--trust if you trust its source'
                raise UserError(str(Finding('pickle', text, (f'{name}.{key}', ))))


@contextmanager
def report_deep_json(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[None]:
    """Context manager that raises a ValueError for JSON that is nested too deeply.

    Args:
        cfg: A config.
        dataloaders: Keys of the dataloaders whose datasets are loaded in the context.
    """
    try:
        yield
    except RecursionError as error:
        files = [path for _, dataset in find_datasets(cfg, dataloaders)
                 for path in get_setting_paths(dataset.get('ann_file'), dataset)]  # yapf: disable
        raise UserError(f'{" or ".join(files)}: JSON is nested too deeply for an annotation '
                        'file') from error


def iter_image_paths(datasets: Iterable[Any],
                     *,
                     allow_external_files: bool = True) -> Iterator[str]:
    """Yield the paths of all images of mmengine datasets; skip other datasets.

    Each entry is read once and none is kept, because there can be a million.

    Args:
        datasets: Loaded datasets.
        allow_external_files: Whether annotations may refer to files outside of ``data_root`` and
            ``data_prefix``, if a dataset has these. Links are not followed, because who can create
            links can also copy files.

    Raises:
        UserError: After the last image of a dataset whose annotations refer to such files.
    """
    for dataset in datasets:
        if not isinstance(dataset, BaseDataset):
            continue
        folders = {} if allow_external_files else {
            'img_path': _find_allowed_folders(dataset, IMAGES),
            'seg_map_path': _find_allowed_folders(dataset, LABEL_MAPS)
        }
        outside: list[str] = []
        for index in range(len(dataset)):
            info = dataset.get_data_info(index)
            outside += [
                info[key] for key, allowed in folders.items()
                if isinstance(info.get(key), str) and _is_outside(info[key], allowed)
            ]
            if isinstance(info.get('img_path'), str):
                yield info['img_path']
        if outside:
            number = '1 file' if len(outside) == 1 else f'{len(outside)} files'
            text = f'{dataset.ann_file or "the dataset"} refers to {number} outside of ' \
                   f'{dataset.data_root or "its folders"}: {format_names(outside, MAX_SHOWN)}. ' \
                   'Pass --allow-external-files if this is intended'
            raise UserError(str(Finding('outside', text, tuple(outside))))


def find_outside_paths(dataset: BaseDataset, paths: Iterable[str],
                       prefixes: tuple[str, ...]) -> list[str]:
    """Return the paths outside of the folders of a dataset."""
    folders = _find_allowed_folders(dataset, prefixes)
    return [path for path in paths if _is_outside(path, folders)]


def _is_outside(path: str, folders: tuple[str, ...]) -> bool:
    return bool(folders) and not f'{normalize_path(path)}/'.startswith(folders)


def _find_allowed_folders(dataset: BaseDataset, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of files, with a trailing slash; none if the dataset has none."""
    folders = [dataset.data_root, *(dataset.data_prefix.get(prefix) for prefix in prefixes)]
    return tuple(f'{normalize_path(folder)}/' for folder in folders if folder)


def normalize_path(path: str) -> str:
    """Return an absolute path or a URL, without ``..`` and trailing slash."""
    return posixpath.normpath(path if '://' in path else os.path.abspath(path)).rstrip('/')
