"""Which images and videos are meant by names of files and folders, and by patterns."""
from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import Any

from colonnade.common.errors import MissingFileError, UserError
from colonnade.runtime.images import SUFFIXES

OUTPUTS = ('.jpg', '.png', '.mp4', '.jsonl')  # behind stems
VIDEOS = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg', '.webm', '.wmv')


@dataclass(frozen=True)
class Input:
    """An image or video.

    Attributes:
        path: Absolute; links are not followed.
        name: Its path from the folder that holds all inputs, with ``/``.
        stem: What its outputs are called: ``name`` without its suffix, or with it where inputs
            differ in their suffixes alone.
    """
    path: Path
    name: str
    stem: str

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEOS


def find_inputs(texts: Iterable[str], ignored: Path) -> list[Input]:
    """The images and videos that are meant, each once, in the order of their names.

    Args:
        texts: Files, folders, which are searched through, and patterns of both: ``shots/*/a*.png``.
        ignored: A folder that is not searched, nor links to it.

    Raises:
        FileNotFoundError: If one of ``texts`` leads to nothing.
        ValueError: If outputs of two inputs would have one place.
    """
    found: dict[Path, None] = {}
    bases = []
    for text in texts:
        base, paths = matches(text, ignored)
        if not paths:
            raise MissingFileError(f'{text}: {absence(text)}')
        bases.append(base)
        found.update(dict.fromkeys(paths))
    base = Path(os.path.commonpath(bases))
    inputs = []
    for path in found:
        name = path.relative_to(base)
        inputs.append(Input(path, name.as_posix(), name.with_suffix('').as_posix()))
    inputs = sorted(with_own_stems(inputs), key=lambda item: natural(item.name))
    check_outputs(inputs)
    return inputs


def with_own_stems(inputs: list[Input]) -> list[Input]:
    """The inputs, those that share a stem with others called by their names."""
    counts = Counter(item.stem for item in inputs)
    if len(counts) == len(inputs):
        return inputs
    return with_own_stems(
        [replace(item, stem=item.name) if counts[item.stem] > 1 else item for item in inputs])


def check_outputs(inputs: list[Input]) -> None:
    """Raise a ValueError if the picture of an input would have the name of a folder of others."""
    folders = {str(folder): item.name for item in inputs
               for folder in PurePosixPath(item.stem).parents}  # yapf: disable
    for item in inputs:
        outputs = {item.name if item.is_video else item.stem + suffix for suffix in OUTPUTS}
        if taken := sorted(outputs & folders.keys()):
            raise UserError(f'{item.name} and {folders[taken[0]]} need the name {taken[0]} for a '
                            'file and a folder: predict them into two folders')


def matches(text: str, ignored: Path) -> tuple[Path, list[Path]]:
    """A folder, and the images and videos below it that a name or pattern means."""
    path = absolute(text)
    if path.is_dir():
        return path, list(walk(path, ignored))
    if os.path.lexists(path):
        return path.parent, [path]
    if not has_magic(text):
        return path.parent, []
    base = next(folder for folder in path.parents if not has_magic(str(folder)))
    paths: list[Path] = []
    for other in map(absolute, glob(text, recursive=True)):
        if other.is_dir():
            paths += walk(other, ignored)
        elif is_known(other):
            paths.append(other)
    return base, paths


def walk(folder: Path, ignored: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """The images and videos in a folder and those below it, but for hidden ones.

    Args:
        folder: Links to folders are followed, but into none of those that lead to it.
        ignored: A folder that is left out.
        above: The real paths of the folders that lead to it.

    Raises:
        OSError: If a folder cannot be read.
    """
    here = os.path.realpath(folder)
    if here in above or here == os.path.realpath(ignored):
        return
    for entry in os.scandir(folder):
        if entry.name.startswith('.'):
            continue
        path = folder / entry.name
        if entry.is_dir():
            yield from walk(path, ignored, (*above, here))
        elif is_known(path):
            yield path


def is_known(path: Path) -> bool:
    """Whether a file is called as an image or video is."""
    return path.suffix.lower() in (*SUFFIXES, *VIDEOS)


def absolute(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))


def absence(text: str) -> str:
    """Why no image was found."""
    if '://' in text:
        return 'nothing is downloaded: save it, and name the file'
    if absolute(text).is_dir():
        return f'no images or videos in this folder ({" ".join((*SUFFIXES, *VIDEOS))})'
    return 'no image or video fits this pattern' if has_magic(text) else 'no such file or folder'


def natural(name: str) -> list[Any]:
    """A key that sorts names as people do, folder by folder: ``a9.jpg`` before ``a10.jpg``."""
    parts = [re.split(r'(\d+)', part.casefold()) for part in name.split('/')]
    return [[[int(piece) if piece.isdecimal() else piece for piece in part] for part in parts],
            name]
