"""The images of a data set: are they there, and can they be read?"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from mmengine.fileio import get, list_dir_or_file

from ..prefetching import prefetched
from ..progress import Progress
from ..storage import content as content_of
from ..storage.files import is_remote
from ..storage.reading_shards import SCHEME
from .coco_files import Look, sides_of
from .image_files import decoded_fault, header_fault, image_size, opened, reading_fault
from .kinds import Fault
from .label_map_files import Labels, label_map_fault, spread

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
    """
    whole: bool = False
    workers: int = 2
    shows_progress: bool = False
    seen: set[str] = field(default_factory=set)


def image_faults(paths: Sequence[str], sizes: Sequence[Size | None], settings: Any,
                 depth: Depth) -> Iterator[tuple[int, Fault]]:
    """What is wrong with images, with their indices.

    Args:
        paths: Of the images.
        sizes: What their annotations say.
        settings: ``backend_args`` of their data set.
        depth: How closely to look.
    """
    if depth.whole:
        yield from in_threads(lambda i: whole_image_fault(paths[i], sizes[i], settings),
                              len(paths), 'images', depth)  # yapf: disable
        return
    if paths and is_remote(paths[0]) and not paths[0].startswith(SCHEME):
        return  # object storage lists a thousand files at a time
    is_listed = listing(settings, depth)
    there = []
    for index, path in enumerate(paths):
        if is_listed(path):
            there.append(index)
        else:
            yield index, reading_fault(path, FileNotFoundError())
    for index in spread(there, SAMPLE):
        size = sizes[index]
        depth.seen.add(paths[index])
        if is_remote(paths[index]) or settings or size is None:
            fault = readable_fault(paths[index], settings)
        else:
            fault = header_fault(Path(paths[index]), size)
        if fault:
            yield index, fault


def in_threads(look: Callable[[int], Fault | None], number: int, what: str,
               depth: Depth) -> Iterator[tuple[int, Fault]]:
    """The faults that a function finds, in order; few results wait at a time."""
    found = prefetched(look, range(number), workers=depth.workers, ahead=4 * depth.workers)
    with Progress(what, number) as progress:
        for index, fault in enumerate(found):
            if depth.shows_progress:
                progress(index + 1)
            if fault:
                yield index, fault


def whole_image_fault(path: str, size: Size | None, settings: Any) -> Fault | None:
    """What is wrong with an image wherever it lies, all of it decoded."""
    try:
        return decoded_fault(path, get(path, settings), size)
    except OSError as error:
        return reading_fault(path, error)
    except ValueError as error:  # of paths that are none
        return 'unreadable-file', f'{path!r} cannot be read: {error}', None


def readable_fault(path: str, settings: Any) -> Fault | None:
    """Why a file cannot be read, wherever it lies."""
    try:
        source = content_of(path, settings)
        empty = not source.getbuffer().nbytes if isinstance(source, BytesIO) else \
            not os.path.getsize(source)
    except OSError as error:
        return reading_fault(path, error)
    return ('empty-file', f'{path} is empty: 0 bytes', None) if empty else None


def listing(settings: Any, depth: Depth) -> Callable[[str], bool]:
    """Tells whether a file is there, and lists each folder once."""

    @cache
    def names(folder: str) -> frozenset[str]:
        depth.seen.add(folder or '.')
        try:
            if is_remote(folder) or settings:
                return frozenset(list_dir_or_file(folder, list_dir=False, backend_args=settings))
            return frozenset(os.listdir(folder or '.'))
        except (OSError, ValueError):
            return frozenset()

    def is_there(path: str) -> bool:
        folder, name = os.path.split(path)
        return name in names(folder) if name not in ('', '.', '..') else os.path.exists(path)

    return is_there


def images_of_entries(folder: str, settings: Any, depth: Depth, used: set[Any] | None) -> Look:
    """Looks at the images of a COCO file, see :func:`image_faults`.

    Args:
        folder: What their names start from.
        settings: ``backend_args`` of the data set.
        depth: How closely to look.
        used: Ids of the images that are not left out; others stop nothing. None for all.
    """

    def look(entries: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Fault]]:
        if used is not None and not depth.whole:
            entries = [entry for entry in entries if entry['id'] in used]
        paths = [os.path.join(folder, entry['file_name']) for entry in entries]
        sizes = list(map(sides_of, entries))
        for index, (kind, text, effect) in image_faults(paths, sizes, settings, depth):
            is_used = used is None or entries[index]['id'] in used
            yield entries[index], (kind, text, effect if is_used else 'none')

    return look


def label_map_faults(infos: Sequence[dict[str, Any]], labels: Labels,
                     depth: Depth) -> Iterator[tuple[int, Fault]]:
    """What is wrong with the label maps of images, with the indices of these."""
    if depth.whole:

        def look(index: int) -> Fault | None:
            info = infos[index]
            return label_map_fault(info, labels, size_of(info, labels))

        yield from in_threads(look, len(infos), 'label maps', depth)
        return
    paths = [info['seg_map_path'] for info in infos]
    if paths and is_remote(paths[0]) and not paths[0].startswith(SCHEME):
        return
    is_listed = listing(labels.settings, depth)
    for index, path in enumerate(paths):
        if not is_listed(path):
            yield index, ('no-label-map', f'{infos[index]["img_path"]} has no label map {path}',
                          None)
    there = [index for index, path in enumerate(paths) if is_listed(path)]
    for index in spread(there, SAMPLE // 2):
        depth.seen.add(paths[index])
        if fault := label_map_fault(infos[index], labels, size_of(infos[index], labels)):
            yield index, fault


def size_of(info: dict[str, Any], labels: Labels) -> Size | None:
    """Width and height of an image as its header says; None if that is not to be known."""
    try:
        source = content_of(info['img_path'], labels.settings)
        if isinstance(source, BytesIO):
            with opened(source) as image:
                return image.size
        return image_size(Path(source))
    except OSError:  # the look at images reports it
        return None
