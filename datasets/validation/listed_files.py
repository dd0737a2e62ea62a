"""Validation of the images and label maps of a dataset: existence, headers, full decoding."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from mmengine.fileio import get, list_dir_or_file

from colonnade.common.prefetching import prefetch_map
from colonnade.common.progress import Progress
from colonnade.common.storage import content as content_of
from colonnade.common.storage.file_access import is_remote
from colonnade.common.storage.shard_reader import SCHEME
from colonnade.settings.findings import Finding

from ..bands import LoadBands
from .coco_files import Entry, ImageCheck, get_size
from .image_files import check_bands, check_decoded_image, check_header, describe_read_error
from .label_map_files import LabelLoading, check_label_map, sample_evenly

SAMPLE = 100  # images of a dataset whose headers are read before each training
Size = tuple[int, int]  # width and height


@dataclass(frozen=True)
class CheckLevel:
    """Thoroughness of a check."""
    # Whether to decode all files; otherwise they are listed, and some headers are read.
    is_full: bool = False
    workers: int = 2  # number of threads that decode
    shows_progress: bool = False  # whether to print a progress line
    # Collects the files and folders that were checked, unless all files are decoded.
    visited: set[str] = field(default_factory=set)
    allow_external_files: bool = True  # whether annotations may refer to files anywhere


@dataclass(frozen=True)
class ImageLoading:
    """Loading of the images of a dataset."""
    settings: Any = None  # ``backend_args`` of the dataset
    color_type: str = 'color'  # ``color_type`` of mmcv's step
    # Whether another step loads images, or any bit depth and number of channels is loaded. Such
    # images are not decoded here.
    is_custom: bool = False
    bands: LoadBands | None = None  # step that loads images of more bands than RGB


def check_images(paths: Sequence[str], sizes: Sequence[Size | None], loading: ImageLoading,
                 level: CheckLevel) -> Iterator[tuple[int, Finding]]:
    """Yield the indices of images and what is wrong with them.

    Args:
        paths: Paths of the images.
        sizes: Width and height of each in its annotations, or None.
        loading: How the dataset loads them.
        level: Thoroughness of the check.
    """
    settings = loading.settings

    def check(index: int) -> Finding | None:
        path, size = paths[index], sizes[index]
        if loading.bands:
            return check_bands(path, size, loading.bands, is_full=level.is_full)
        if loading.is_custom or not level.is_full and (is_remote(path) or settings):
            return _check_readable(path, settings)
        if not level.is_full:
            return check_header(Path(path), size, color_type=loading.color_type)
        try:
            return check_decoded_image(
                path, get(path, settings), size, color_type=loading.color_type)
        except OSError as error:
            return describe_read_error(path, error)
        except ValueError as error:  # invalid path
            return Finding('unreadable-file', f'{path!r} cannot be read: {error}')

    yield from check_files(paths, 'images', list_findings(check), settings, level, SAMPLE)


def check_label_maps(infos: Sequence[dict[str, Any]], loading: LabelLoading,
                     level: CheckLevel) -> Iterator[tuple[int, Finding]]:
    """Yield the indices of images and what is wrong with their label maps."""

    def check(index: int) -> Finding | None:
        return check_label_map(infos[index], loading, loading.read_image_size(infos[index]))

    paths = [info['seg_map_path'] for info in infos]
    for index, finding in check_files(paths, 'label maps', list_findings(check), loading.settings,
                                      level, SAMPLE // 2):
        if finding.rule == 'missing-file':
            text = f'{infos[index]["img_path"]} has no label map {paths[index]}'
            finding = Finding('no-label-map', text)
        yield index, finding


def list_findings(check: Callable[[int], Finding | None]) -> Callable[[int], list[Finding]]:
    """Return a check that lists at most one finding, for :func:`check_files`."""
    return lambda index: [finding] if (finding := check(index)) else []


def check_files(paths: Sequence[str], name: str, check: Callable[[int], list[Finding]],
                settings: Any, level: CheckLevel, sample: int) -> Iterator[tuple[int, Finding]]:
    """Yield the indices of files and what is wrong with them.

    A full check opens all files. Otherwise all are looked up and ``sample`` of them are opened, or
    none on object storage, which lists only a thousand files at a time.
    """
    if level.is_full:
        findings = prefetch_map(
            check, range(len(paths)), workers=level.workers, ahead=4 * level.workers)
        with Progress(name, len(paths)) as progress:
            for index, found in enumerate(findings):
                if level.shows_progress:
                    progress(index + 1)
                for finding in found:
                    yield index, finding
        return
    if paths and is_remote(paths[0]) and not paths[0].startswith(SCHEME):
        return
    find_missing = _make_lookup(settings, level)
    missing = {index: each for index, path in enumerate(paths) if (each := find_missing(path))}
    yield from missing.items()
    for index in sample_evenly([i for i in range(len(paths)) if i not in missing], sample):
        level.visited.add(paths[index])
        for finding in check(index):
            yield index, finding


def _check_readable(path: str, settings: Any) -> Finding | None:
    try:
        source = content_of(path, settings)
        is_empty = not source.getbuffer().nbytes if isinstance(source, BytesIO) else \
            not os.path.getsize(source)
    except OSError as error:
        return describe_read_error(path, error)
    return Finding('empty-file', f'{path} is empty: 0 bytes') if is_empty else None


def _make_lookup(settings: Any, level: CheckLevel) -> Callable[[str], Finding | None]:
    """Return a function that returns why a file cannot be found; it lists each folder once."""

    @cache
    def list_names(folder: str) -> frozenset[str] | OSError:
        level.visited.add(folder or '.')
        try:
            if is_remote(folder) or settings:
                return frozenset(list_dir_or_file(folder, list_dir=False, backend_args=settings))
            return frozenset(os.listdir(folder or '.'))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return frozenset()
        except OSError as error:
            return error

    def find_missing(path: str) -> Finding | None:
        folder, name = os.path.split(path)
        names = list_names(folder) if name not in ('', '.', '..') else frozenset()
        if not isinstance(names, OSError) and name in names or os.path.exists(path):
            return None
        return describe_read_error(folder, names) if isinstance(names, OSError) else \
            describe_read_error(path, FileNotFoundError())

    return find_missing


def make_image_check(folder: str,
                     loading: ImageLoading,
                     level: CheckLevel,
                     used: set[Any] | None,
                     *,
                     fits: bool = False) -> ImageCheck:
    """Return a check of the images of a COCO file, see :func:`check_images`.

    Args:
        folder: Folder that file names are relative to.
        used: IDs of the images that training uses; others have no effect. None for all.
        fits: Whether images must have the size in the file, because their masks are not resized.
    """

    def check(entries: list[Entry]) -> Iterator[tuple[Entry, Finding]]:
        if used is not None and not level.is_full:
            entries = [entry for entry in entries if entry['id'] in used]
        paths = [os.path.join(folder, entry['file_name']) for entry in entries]
        for index, finding in check_images(paths, list(map(get_size, entries)), loading, level):
            is_used = used is None or entries[index]['id'] in used
            if fits and finding.rule == 'other-size':
                finding = replace(finding, effect='sample')
            yield entries[index], finding if is_used else replace(finding, effect='none')

    return check
