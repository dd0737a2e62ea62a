"""Images and videos found by file names, folders and glob patterns."""
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

OUTPUT_SUFFIXES = ('.jpg', '.png', '.tif', '.geojson', '.mp4', '.jsonl')  # appended to stems
VIDEO_SUFFIXES = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg', '.webm', '.wmv')
INPUT_SUFFIXES = (*SUFFIXES, *VIDEO_SUFFIXES)


@dataclass(frozen=True)
class Input:
    """An image or video."""
    path: Path  # absolute; symbolic links are not resolved
    name: str  # relative to the folder that holds all inputs, with slashes
    stem: str  # base name of outputs: name without suffix, unless another input has the same

    @property
    def is_video(self) -> bool:
        """True for a video, by its suffix."""
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def find_inputs(patterns: Iterable[str], ignored: Path) -> list[Input]:
    """Return the images and videos that match, each once, in natural order of their names.

    Args:
        patterns: Files, folders, which are searched recursively, and glob patterns of both, as in
            ``shots/*/a*.png``.
        ignored: Folder that is not searched, nor links to it.
    """
    matches: dict[Path, None] = {}
    bases = []
    for pattern in patterns:
        base, paths = match_pattern(pattern, ignored)
        if not paths:
            raise MissingFileError(f'{pattern}: {explain_no_match(pattern)}')
        bases.append(base)
        matches.update(dict.fromkeys(paths))
    base = Path(os.path.commonpath(bases))
    names = [path.relative_to(base) for path in matches]
    inputs = [
        Input(path, name.as_posix(),
              name.with_suffix('').as_posix()) for path, name in zip(matches, names, strict=True)
    ]
    while len(counts := Counter(item.stem for item in inputs)) < len(inputs):
        inputs = [
            replace(item, stem=item.name) if counts[item.stem] > 1 else item for item in inputs
        ]
    inputs.sort(key=lambda item: natural_sort_key(item.name))
    check_outputs(inputs)
    return inputs


def check_outputs(inputs: list[Input]) -> None:
    """Raise a UserError if an output file of an input has the path of another one's folder."""
    folders = {str(folder): item.name for item in inputs
               for folder in PurePosixPath(item.stem).parents}  # yapf: disable
    for item in inputs:
        outputs = {item.name if item.is_video else item.stem + suffix for suffix in OUTPUT_SUFFIXES}
        if taken := sorted(outputs & folders.keys()):
            raise UserError(f'outputs of {item.name} and {folders[taken[0]]} would be a file and a '
                            f'folder, both called {taken[0]}: use a different --out for each')


def match_pattern(pattern: str, ignored: Path) -> tuple[Path, list[Path]]:
    """Return a folder, and the images and videos below it that match a name or pattern."""
    path = resolve_path(pattern)
    if path.is_dir():
        return path, list(walk(path, ignored))
    if os.path.lexists(path):
        return path.parent, [path]
    if not has_magic(pattern):
        return path.parent, []
    base = next(folder for folder in path.parents if not has_magic(str(folder)))
    paths: list[Path] = []
    for match in map(resolve_path, glob(pattern, recursive=True)):
        if match.is_dir():
            paths += walk(match, ignored)
        elif match.suffix.lower() in INPUT_SUFFIXES:
            paths.append(match)
    return base, paths


def walk(folder: Path, ignored: Path, parents: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the images and videos in a folder and its subfolders, except hidden ones.

    Links to folders are followed, except to ``parents``, the real paths that lead to ``folder``.
    """
    real_path = os.path.realpath(folder)
    if real_path in parents or real_path == os.path.realpath(ignored):
        return
    for entry in os.scandir(folder):
        if entry.name.startswith('.'):
            continue
        path = folder / entry.name
        if entry.is_dir():
            yield from walk(path, ignored, (*parents, real_path))
        elif path.suffix.lower() in INPUT_SUFFIXES:
            yield path


def resolve_path(text: str) -> Path:
    """Return an absolute path, with ``~`` expanded but links kept."""
    return Path(os.path.abspath(os.path.expanduser(text)))


def explain_no_match(pattern: str) -> str:
    """Return why no image or video matches a pattern."""
    if '://' in pattern:
        return 'URLs are not supported: download the file and pass its path'
    if resolve_path(pattern).is_dir():
        return f'no images or videos in this folder ({" ".join(INPUT_SUFFIXES)})'
    if has_magic(pattern):
        return 'no image or video matches this pattern'
    return 'no such file or folder'


def natural_sort_key(name: str) -> list[Any]:
    """Return a key that sorts paths in natural order: ``a9.jpg`` before ``a10.jpg``."""
    parts = [re.split(r'(\d+)', part.casefold()) for part in name.split('/')]
    return [[[int(piece) if piece.isdecimal() else piece for piece in part] for part in parts],
            name]
