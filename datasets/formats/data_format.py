"""Dataset formats, and what their readers share: context, files and folders by their names."""
from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Literal

from colonnade.common.name_lists import format_count
from colonnade.runtime.images import SUFFIXES

from ..data_index import AnnotatedImage, DataIndex, LabelSet
from ..options import DataOptions
from ..validation.image_files import read_image_size
from ..validation.validation_report import Report

OpenedData = Sequence[DataIndex] | LabelSet | None  # instances, or label maps
AnnotationType = Literal['instances', 'labels', 'panoptic']
SPLITS = {
    'train': ('train', 'training'),
    'val': ('val', 'valid', 'validation'),
    'test': ('test', 'testing'),
}
ALL = 'all'  # the only split of a dataset without splits
TOO_FEW_POINTS = 'polygons with fewer than three points are omitted'
TEST_LEFT = 'images of the test split are not used'


@dataclass(frozen=True)
class DataFormat:
    """A dataset format: how it is detected and how it is converted."""
    name: str
    type: AnnotationType  # ``labels`` for segmenters, others for detectors
    layout: str  # files by which it is detected, for messages
    # Returns True if a file or folder has this format; reads only few files.
    detect: Callable[[Path], bool]
    # Reads ``data``, and converts it where needed. Returns training and validation, or None after
    # an error.
    open: Callable[[DataOptions, Report], OpenedData]


@dataclass
class Occurrences:
    """Number of occurrences of an event, and the first one."""
    count: int = 0
    first: str | None = None

    def __str__(self) -> str:
        return f'{self.count}, the first: {self.first}' if self.first else str(self.count)


@dataclass
class ReadContext:
    """State while a dataset is read."""
    root: Path  # folder that locations are relative to
    report: Report  # collects errors
    paths: Sequence[Path] = ()  # paths passed with ``--data``
    skips_bad_data: bool = False  # whether to skip unusable samples instead of reporting errors
    boxes_only: bool = False  # whether masks are not used
    classes: Sequence[str] | None = None  # names that the user passed
    num_bands: int | None = None  # see :func:`.read_image_size`
    # What the COCO format cannot hold, or is not used.
    dropped: dict[str, Occurrences] = field(default_factory=dict)
    repairs: dict[str, Occurrences] = field(default_factory=dict)  # completed repairs
    skipped: dict[str, str] = field(default_factory=dict)  # skipped samples, and why
    tables: set[Path] = field(default_factory=set)  # files about the whole dataset that were read
    # Files of single images that were read, or do not exist.
    labels: set[Path] = field(default_factory=set)
    # Images of each folder by stem, for :meth:`find_image`.
    listings: dict[Path, dict[str, list[Path]]] = field(default_factory=dict)
    # Images that :meth:`find_image` found, and the annotation file of each.
    owners: dict[Path, Path] = field(default_factory=dict)
    errors: set[str] = field(default_factory=set)  # errors that were reported

    def count_repair(self, what: str, location: str | None = None) -> None:
        """Count a repair; the first location becomes its example."""
        self.repairs.setdefault(what, Occurrences(first=location)).count += 1

    def report_repairs(self) -> None:
        """Report all repairs in one warning."""
        if self.repairs:
            repairs = '; '.join(f'{what} ({each})' for what, each in self.repairs.items())
            self.report.add_warning(f'repaired: {repairs}')

    def count_dropped(self, what: str, location: str | None = None, count: int = 1) -> None:
        """Count something that is not converted; the first location becomes its example."""
        self.dropped.setdefault(what, Occurrences(first=location)).count += count

    def count_link(self, path: Path) -> None:
        """Count a link to a folder that was read already."""
        self.count_dropped('links to folders that were read already are ignored', self.locate(path))

    def locate(self, file: Path, place: int | str | None = None) -> str:
        """Return the location of a file, or of a line or object in it, relative to the root."""
        name = os.path.relpath(file, self.root)
        if place is None:
            return name
        return f'{name}:{place}' if isinstance(place, int) else f'{name}: {place}'

    def add_error(self,
                  file: Path,
                  text: str,
                  place: int | str | None = None,
                  *,
                  skippable: bool = False) -> None:
        """Report an error once, with a path relative to the working directory where possible."""
        path = os.path.normpath(self.root / self.locate(file, place))
        relative = os.path.relpath(path)
        error = f'{path if relative.startswith("..") else relative}: {text}'
        if error not in self.errors:
            self.errors.add(error)
            add = self.report.add_skippable_error if skippable else self.report.add_error
            add(error)

    def reject(self,
               file: Path,
               text: str,
               place: int | str | None = None,
               *,
               sample: str | None = None) -> None:
        """Report an error of one sample (default: the file's), or skip the sample."""
        if self.skips_bad_data:
            self.skipped.setdefault(sample or str(file), f'{self.locate(file, place)}: {text}')
        else:
            self.add_error(file, text, place, skippable=True)

    def read_lines(self, file: Path) -> list[str]:
        """Return the stripped lines of a text file, or none after reporting an error."""
        self.tables.add(file)
        try:
            return [line.strip() for line in read_text(file).rstrip().splitlines()]
        except (OSError, ValueError) as error:
            self.add_error(file, f'cannot be read: {error}')
            return []

    def read_size(self,
                  image: Path,
                  declared: tuple[int, int] | None = None,
                  annotations: Path | None = None) -> tuple[int, int] | None:
        """Return width and height of an image, or None after rejecting it.

        Args:
            image: Path of the image.
            declared: Width and height in its annotations; None or zeros if they are missing.
            annotations: File of the annotations.
        """
        try:
            size = read_image_size(image, num_bands=self.num_bands)
        except OSError as error:
            self.reject(image, f'cannot be read: {error}')
            return None
        if declared and annotations and all(declared) and size != declared:
            self.reject(
                annotations, f'says {declared[0]} x {declared[1]} pixels, but {image} has '
                f'{size[0]} x {size[1]}')
            return None
        return size

    def find_image(self, file: Path, name: str | None, folders: Sequence[Path] = ()) -> Path | None:
        """Return the image with the stem of an annotation file, else the one that it names.

        The stem comes first, because annotations often keep the name that an image had before it
        was exported. Two files must not annotate the same image, which would be trained twice with
        a part of its objects each time.

        Args:
            name: Name or relative path of the image in the annotations.
            folders: Folders of images, in addition to the folder of the annotations.
        """
        image = self._find_by_stem_or_name(file, name, [file.parent, *folders])
        if image and (owner := self.owners.setdefault(image, file)) != file:
            self.add_error(file, f'{owner} also annotates {image}: remove one of the two files')
            return None
        return image

    def _find_by_stem_or_name(self, file: Path, name: str | None,
                              folders: Sequence[Path]) -> Path | None:
        for folder in folders:
            if folder not in self.listings:
                stems = defaultdict(list)
                for path in list_images(folder):
                    stems[path.stem].append(path)
                self.listings[folder] = dict(stems)
            if images := self.listings[folder].get(file.stem, []):
                if len(images) == 1:
                    return images[0]
                names = ' and '.join(image.name for image in images)
                self.add_error(file, f'matches several images, {names}: rename one')
                return None
        named = PureWindowsPath(name or '')  # accepts both separators
        if named.name:
            for way in (file.parent / named.as_posix(), *(each / named.name for each in folders)):
                if way.is_file() and way.suffix.lower() in SUFFIXES:
                    return way
        self.reject(file, f'its image {name or file.stem} does not exist')
        return None

    def count_unused_images(self, images: Iterable[Iterable[AnnotatedImage]]) -> None:
        """Count the images next to those of all splits that have no annotations."""
        used = {image.path for split in images for image in split}
        for folder in sorted({path.parent for path in used}):
            for path in list_images(folder):
                if path not in used and path not in self.owners:
                    self.count_dropped('images without annotations, or of no split, are not used',
                                       self.locate(path))

    def ignore_errors(self) -> ReadContext:
        """Return a context for test data: nothing uses them, so errors do not matter."""
        return ReadContext(self.root, Report(), paths=self.paths)


def report_skipped(reasons: Sequence[str], report: Report) -> None:
    """Add a warning about skipped samples, if there are any."""
    if reasons:
        report.add_warning(
            f'--on-bad-data skip: {format_count(len(reasons), "sample")} skipped, the first: '
            f'{reasons[0]}')


def check_remaining(counts: Iterable[tuple[Path, int]], reasons: Sequence[str],
                    report: Report) -> None:
    """Report folders of which every image was skipped.

    Args:
        counts: Folder of images, and the number of images left, of each split.
        reasons: Reasons of skipped samples.
    """
    empty = [folder for folder, count in counts if not count]
    if empty:
        report_skipped(reasons, report)
    for folder in empty:
        report.add_error(f'{folder}: no usable image is left')


def list_images(folder: Path) -> Iterator[Path]:
    """Yield the images directly in a folder, sorted."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix.lower() in SUFFIXES:
            yield path


def find_split_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of training, validation and test below a folder, by their names.

    A name can end in a number, as in ``train2017``, if it is the only such folder of the split.
    """
    entries = sorted(folder.iterdir()) if folder.is_dir() else ()
    folders = [entry for entry in entries if entry.is_dir()]
    splits: dict[str, Path] = {}
    for split, names in SPLITS.items():
        exact = [entry for entry in folders if entry.name.lower() in names]
        numbered = [entry for entry in folders if remove_number(entry.name) in names]
        if exact or len(numbered) == 1:
            splits[split] = (exact or numbered)[0]
    return splits


def remove_number(name: str) -> str:
    """Return the lower-case name of a folder without the year at its end."""
    return name.lower().rstrip('0123456789')


def match_suffix(suffix: str) -> str:
    """Return a ``glob`` pattern of names that end in a suffix, in upper or lower case."""
    return '*' + ''.join(f'[{letter.lower()}{letter.upper()}]' for letter in suffix)


def glob_nearby(folder: Path, suffix: str) -> Iterator[Path]:
    """Yield the files with a suffix in a folder and in the two levels below."""
    for below in ('', '*/', '*/*/'):
        yield from folder.glob(below + match_suffix(suffix))


def find_root_above_images(folder: Path) -> Path:
    """Return the parent of the nearest folder ``images`` above; the folder itself if none is."""
    folder = Path(os.path.abspath(folder))
    return next((p.parent for p in (folder, *folder.parents) if p.name == 'images'), folder)


def find_files(folder: Path,
               suffixes: Collection[str],
               on_link: Callable[[Path], None] | None = None,
               on_error: Callable[[OSError], None] | None = None) -> list[Path]:
    """Return all files in and below a folder that have one of some suffixes, except hidden ones.

    Args:
        suffixes: Lower-case suffixes; names can have upper-case ones.
        on_link: Called for links to folders that were read already, which are not followed.
        on_error: Called for folders that cannot be read.
    """
    top = os.path.realpath(folder)
    files, visited = [], {top, *map(str, Path(top).parents)}
    for parent, below, names in os.walk(folder, followlinks=True, onerror=on_error):
        for name in list(below):
            real = os.path.realpath(os.path.join(parent, name))
            if real in visited:
                below.remove(name)
                if on_link:
                    on_link(Path(parent, name))
            visited.add(real)
        files += [
            Path(parent, name) for name in names
            if not name.startswith('.') and os.path.splitext(name)[1].lower() in suffixes
        ]
    return sorted(files)


def read_start(file: Path, num_bytes: int = 1000) -> bytes:
    """Return the start of a file, where XML has its root element; empty if it is unreadable."""
    try:
        with file.open('rb') as handle:
            return handle.read(num_bytes)
    except OSError:
        return b''


def read_text(file: Path) -> str:
    """Return the text of a UTF-8 file with or without a byte order mark."""
    return file.read_text(encoding='utf-8-sig')


def compute_box(polygons: Iterable[Sequence[float]]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of polygons."""
    xs = [x for polygon in polygons for x in polygon[::2]]
    ys = [y for polygon in polygons for y in polygon[1::2]]
    return min(xs), min(ys), max(xs), max(ys)


def are_finite(values: Iterable[float]) -> bool:
    """Return True if no number is NaN or infinite."""
    try:
        return all(map(math.isfinite, values))
    except OverflowError:  # an integer beyond all floats
        return False
