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

from .data_sources import find_datasets, paths_of_setting

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
                raise ValueError(f'{name}.{key}: {path} is pickled, and reading it could run any '
                                 'code. If you trust who made it, say --trust')


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
        raise ValueError(f'{" or ".join(files)}: brackets are nested too deeply, annotations have '
                         'no such JSON') from error


def image_paths(datasets: Iterable[Any], *, allow_outside: bool = True) -> list[str]:
    """The paths of all images of mmengine's data sets, which say them; others are left out.

    Args:
        datasets: That are loaded.
        allow_outside: Whether annotations may name files anywhere. If not, it is in ``data_root``
            and ``data_prefix`` alone, unless a data set has neither. Links are not followed:
            whoever may make them may copy files too.

    Raises:
        ValueError: If annotations name files that they may not.
    """
    found = []
    for dataset in datasets:
        if isinstance(dataset, BaseDataset):
            images, label_maps = paths_in(dataset)
            found += images
            if not allow_outside:
                check_inside(dataset, images, IMAGES)
                check_inside(dataset, label_maps, LABEL_MAPS)
    return found


def paths_in(dataset: BaseDataset) -> tuple[list[str], list[str]]:
    """The paths of a data set's images and of their label maps, where it says them."""
    infos = (dataset.get_data_info(index) for index in range(len(dataset)))
    pairs = [(info.get('img_path'), info.get('seg_map_path')) for info in infos]
    images, label_maps = zip(*pairs, strict=True) if pairs else ((), ())
    return ([path for path in images
             if isinstance(path, str)], [path for path in label_maps if isinstance(path, str)])


def check_inside(dataset: BaseDataset, paths: list[str], prefixes: tuple[str, ...]) -> None:
    """Raise a ValueError if paths lead out of the folders of a data set."""
    found = outside_of(dataset, paths, prefixes)
    if found:
        more = f' and {len(found) - EXAMPLES} more' if len(found) > EXAMPLES else ''
        number = '1 file' if len(found) == 1 else f'{len(found)} files'
        raise ValueError(
            f'{dataset.ann_file or "the data set"} names {number} outside of '
            f'{dataset.data_root or "its folders"}: {", ".join(found[:EXAMPLES])}{more}. If they '
            'are meant, say --allow-outside')


def outside_of(dataset: BaseDataset, paths: Iterable[str], prefixes: tuple[str, ...]) -> list[str]:
    """Those of the paths that lead out of the folders of a data set."""
    folders = folders_of(dataset, prefixes)
    return [path for path in paths if folders and not f'{plain(path)}/'.startswith(folders)]


def folders_of(dataset: BaseDataset, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that files of a kind may lie in, ending in ``/``; none if none is named."""
    named = [dataset.data_root, *(dataset.data_prefix.get(prefix) for prefix in prefixes)]
    return tuple(f'{plain(each)}/' for each in named if each)


def plain(path: str) -> str:
    """A path from the root on, or a URL, without ``..``; no slash at its end."""
    return posixpath.normpath(path if '://' in path else os.path.abspath(path)).rstrip('/')
