"""The images of a data set: are they there, and can they be read?"""
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

from .coco_files import Look, get_size
from .image_files import decoded_fault, header_fault, image_size, open_image, reading_fault
from .label_map_files import Labels, label_map_fault, missing_label_map, spread

SAMPLE = 100  # images of a data set whose headers are read before each training
Size = tuple[int, int]  # width and height


@dataclass(frozen=True)
class Depth:
    """How closely files are looked at.

    Attributes:
        whole: Decode all of them; else they are listed, and some of their headers read.
        workers: Threads that decode.
        shows_progress: Whether a line of progress is printed.
        seen: Takes the files and folders that were looked at; none if all files were decoded.
        allow_external_files: Whether annotations may name files anywhere.
    """
    whole: bool = False
    workers: int = 2
    shows_progress: bool = False
    seen: set[str] = field(default_factory=set)
    allow_external_files: bool = True


@dataclass(frozen=True)
class Loading:
    """How a data set loads its images.

    Attributes:
        settings: Its ``backend_args``.
        color_type: As mmcv's step has it.
        is_own: Whether a step of another kind loads them, or as they are, of any depth and number
            of channels; then they are not decoded here.
    """
    settings: Any = None
    color_type: str = 'color'
    is_own: bool = False


def image_faults(paths: Sequence[str], sizes: Sequence[Size | None], loading: Loading,
                 depth: Depth) -> Iterator[tuple[int, Finding]]:
    """What is wrong with images, with their indices.

    Args:
        paths: Of the images.
        sizes: What their annotations say.
        loading: How their data set loads them.
        depth: How closely to look.
    """
    settings = loading.settings

    def look(index: int) -> Finding | None:
        if depth.whole:
            return whole_image_fault(paths[index], sizes[index], loading)
        if is_remote(paths[index]) or settings or loading.is_own:
            return readable_fault(paths[index], settings)
        return header_fault(Path(paths[index]), sizes[index], color_type=loading.color_type)

    yield from file_faults(paths, 'images', look, settings, depth, SAMPLE)


def file_faults(paths: Sequence[str], what: str, look: Callable[[int], Finding | None],
                settings: Any, depth: Depth, sample: int) -> Iterator[tuple[int, Finding]]:
    """Yield what is wrong with files, with their indices.

    Args:
        paths: Paths of the files.
        what: Name of the files for the line of progress.
        look: Returns what is wrong with the file of an index.
        settings: ``backend_args`` of the dataset.
        depth: All files are opened, or all are looked for and some are opened. On object storage,
            which lists a thousand files at a time, it is all or none.
        sample: Number of files that are opened then.
    """
    if depth.whole:
        yield from in_threads(look, len(paths), what, depth)
        return
    if paths and is_remote(paths[0]) and not paths[0].startswith(SCHEME):
        return
    absence = listing(settings, depth)
    absent = {index: fault for index, path in enumerate(paths) if (fault := absence(path))}
    yield from absent.items()
    for index in spread([i for i in range(len(paths)) if i not in absent], sample):
        depth.seen.add(paths[index])
        if fault := look(index):
            yield index, fault


def in_threads(look: Callable[[int], Finding | None], number: int, what: str,
               depth: Depth) -> Iterator[tuple[int, Finding]]:
    """The faults that a function finds, in order; few results wait at a time."""
    found = prefetch_map(look, range(number), workers=depth.workers, ahead=4 * depth.workers)
    with Progress(what, number) as progress:
        for index, fault in enumerate(found):
            if depth.shows_progress:
                progress(index + 1)
            if fault:
                yield index, fault


def whole_image_fault(path: str, size: Size | None, loading: Loading) -> Finding | None:
    """What is wrong with an image wherever it lies, all of it decoded."""
    if loading.is_own:
        return readable_fault(path, loading.settings)
    try:
        return decoded_fault(path, get(path, loading.settings), size, color_type=loading.color_type)
    except OSError as error:
        return reading_fault(path, error)
    except ValueError as error:  # of paths that are none
        return Finding('unreadable-file', f'{path!r} cannot be read: {error}')


def readable_fault(path: str, settings: Any) -> Finding | None:
    """Why a file cannot be read, wherever it lies."""
    try:
        source = content_of(path, settings)
        empty = not source.getbuffer().nbytes if isinstance(source, BytesIO) else \
            not os.path.getsize(source)
    except OSError as error:
        return reading_fault(path, error)
    return Finding('empty-file', f'{path} is empty: 0 bytes') if empty else None


def listing(settings: Any, depth: Depth) -> Callable[[str], Finding | None]:
    """Tells why a file cannot be found, if so, and lists each folder once."""

    @cache
    def names(folder: str) -> frozenset[str] | OSError:
        depth.seen.add(folder or '.')
        try:
            if is_remote(folder) or settings:
                return frozenset(list_dir_or_file(folder, list_dir=False, backend_args=settings))
            return frozenset(os.listdir(folder or '.'))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return frozenset()
        except OSError as error:
            return error

    def absence(path: str) -> Finding | None:
        folder, name = os.path.split(path)
        found = names(folder) if name not in ('', '.', '..') else frozenset()
        if not isinstance(found, OSError) and name in found or os.path.exists(path):
            return None
        return reading_fault(folder, found) if isinstance(found, OSError) else \
            reading_fault(path, FileNotFoundError())

    return absence


def images_of_entries(folder: str, loading: Loading, depth: Depth, used: set[Any] | None) -> Look:
    """Looks at the images of a COCO file, see :func:`image_faults`.

    Args:
        folder: What their names start from.
        loading: How the data set loads them.
        depth: How closely to look.
        used: Ids of the images that are not left out; others stop nothing. None for all.
    """

    def look(entries: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Finding]]:
        if used is not None and not depth.whole:
            entries = [entry for entry in entries if entry['id'] in used]
        paths = [os.path.join(folder, entry['file_name']) for entry in entries]
        sizes = list(map(get_size, entries))
        for index, fault in image_faults(paths, sizes, loading, depth):
            is_used = used is None or entries[index]['id'] in used
            yield entries[index], fault if is_used else replace(fault, effect='none')

    return look


def label_map_faults(infos: Sequence[dict[str, Any]], labels: Labels,
                     depth: Depth) -> Iterator[tuple[int, Finding]]:
    """What is wrong with the label maps of images, with the indices of these."""

    def look(index: int) -> Finding | None:
        return label_map_fault(infos[index], labels, read_size(infos[index], labels))

    paths = [info['seg_map_path'] for info in infos]
    for index, fault in file_faults(paths, 'label maps', look, labels.settings, depth, SAMPLE // 2):
        is_missing = fault.rule == 'missing-file'
        yield index, missing_label_map(infos[index]) if is_missing else fault


def read_size(info: dict[str, Any], labels: Labels) -> Size | None:
    """Width and height of an image as its header says; None if that is not to be known."""
    try:
        source = content_of(info['img_path'], labels.settings)
        if isinstance(source, BytesIO):
            with open_image(source) as image:
                return image.size
        return image_size(Path(source), color_type=labels.color_type)
    except OSError:  # the look at images reports it
        return None
