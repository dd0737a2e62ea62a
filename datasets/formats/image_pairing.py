"""The image that a file of annotations belongs to."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath

from colonnade.runtime.images import SUFFIXES

from ..data_index import AnnotatedImage
from .instance_records import Reading


def find_image(file: Path, said: str | None, folders: list[Path], reading: Reading) -> Path | None:
    """The image that has the stem of its annotations; else the one that they name.

    No other annotations may be of the same image: it would be trained twice, with a part of its
    objects each time.

    Names in annotations often are those that the image had before a program exported it.

    Args:
        file: The annotations.
        said: The name of the image, or its path from the annotations, that they give.
        folders: Where images may be, besides the folder of the annotations.
        reading: Takes a fault if there is none, or more than one.
    """
    image = _found(file, said, folders, reading)
    if image and (owner := reading.owners.setdefault(image, file)) != file:
        reading.fault(file, f'{owner} is of the same image {image}: keep one of them')
        return None
    return image


def _found(file: Path, said: str | None, folders: list[Path], reading: Reading) -> Path | None:
    places = [file.parent, *folders]
    for folder in places:
        if folder not in reading.listings:
            reading.listings[folder] = _by_stem(folder)
        found = reading.listings[folder].get(file.stem, [])
        if len(found) > 1:
            names = ' and '.join(image.name for image in found)
            reading.fault(file, f'it would be the annotations of {names}: rename one')
            return None
        if found:
            return found[0]
    name = PureWindowsPath(said or '')  # takes / and \
    if name.name:
        ways = [file.parent / name.as_posix(), *(folder / name.name for folder in places)]
        for way in ways:
            if way.is_file() and way.suffix.lower() in SUFFIXES:
                return way
    reading.reject(file, f'there is no image {said or file.stem} of it')
    return None


def count_unused(parts: Iterable[Iterable[AnnotatedImage]], reading: Reading) -> None:
    """Count images beside those that are used, which have no annotations."""
    used = {image.path for part in parts for image in part}
    for folder in sorted({path.parent for path in used}):
        for path in sorted(folder.iterdir()):
            if path.suffix.lower() in SUFFIXES and path not in used and path not in reading.owners:
                reading.lose('images without annotations, or of no part, are not used',
                             reading.source(path))


def _by_stem(folder: Path) -> dict[str, list[Path]]:
    """Images of a folder by what their names are without the suffix."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix.lower() in SUFFIXES:
            found[path.stem].append(path)
    return dict(found)
