"""State of a reading of annotations; files and folders by their names."""
from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..validation.image_files import image_size
from ..validation.validation_report import Report

SPLITS = {
    'train': ('train', 'training'),
    'val': ('val', 'valid', 'validation'),
    'test': ('test', 'testing'),
}
ALL = 'all'  # the part of data that are not split
TOO_FEW_POINTS = 'polygons of fewer than three points are left out'
TEST_LEFT = 'images of the test part are left for tests'


@dataclass
class Loss:
    """How often something is not kept, and where first."""
    count: int = 0
    first: str | None = None

    def __str__(self) -> str:
        return f'{self.count}, the first: {self.first}' if self.first else str(self.count)


@dataclass
class Reading:
    """A data set while it is read.

    Attributes:
        root: The folder that sources are named from.
        report: Takes faults.
        lost: What COCO's form cannot hold, or is not used, and how often.
        listings: Images of folders by their stems, for :func:`~.image_pairing.find_image`.
        faults: Those that were reported.
        owners: Images that :func:`~.image_pairing.find_image` found, and the annotations of each.
        paths: All that ``--data`` names.
        skips_bad_data: Whether samples that cannot be used are left out, not reported as faults.
        boxes_only: Whether masks are not used.
        skipped: Samples that are left out, and why.
        repairs: What was repaired, and how often.
        tables: Files on the whole dataset that were read.
        labels: Files of single images that were read, or do not exist.
    """
    root: Path
    report: Report
    lost: dict[str, Loss] = field(default_factory=dict)
    listings: dict[Path, dict[str, list[Path]]] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    owners: dict[Path, Path] = field(default_factory=dict)
    paths: Sequence[Path] = ()
    skips_bad_data: bool = False
    boxes_only: bool = False
    skipped: dict[str, str] = field(default_factory=dict)
    repairs: dict[str, Loss] = field(default_factory=dict)
    tables: set[Path] = field(default_factory=set)
    labels: set[Path] = field(default_factory=set)

    def repair(self, what: str, source: str | None = None) -> None:
        """Count a repair; the first source is its example."""
        self.repairs.setdefault(what, Loss(first=source)).count += 1

    def lose(self, what: str, source: str | None = None, count: int = 1) -> None:
        """Count something that is not kept; the first source is its example."""
        loss = self.lost.setdefault(what, Loss(first=source))
        loss.count += count

    def source(self, file: Path, place: int | str | None = None) -> str:
        """The name of a file, or of a line or object in it, below the root."""
        name = os.path.relpath(file, self.root)
        if place is None:
            return name
        return f'{name}:{place}' if isinstance(place, int) else f'{name}: {place}'

    def fault(self, file: Path, text: str, place: int | str | None = None) -> None:
        """Report what is wrong in a file, once; it is named from the current directory if below."""
        path = os.path.normpath(self.root / self.source(file, place))
        below = os.path.relpath(path)
        fault = f'{path if below.startswith("..") else below}: {text}'
        if fault not in self.faults:
            self.faults.add(fault)
            self.report.fault(fault)

    def reject(self,
               file: Path,
               text: str,
               place: int | str | None = None,
               *,
               sample: str | None = None) -> None:
        """Report what is wrong with one sample, or count it if bad samples are skipped.

        Args:
            file, text, place: See :meth:`fault`.
            sample: Name of the sample. Defaults to the file.
        """
        if self.skips_bad_data:
            self.skipped.setdefault(sample or str(file), f'{self.source(file, place)}: {text}')
        else:
            self.fault(file, text, place)

    def lines_of(self, file: Path) -> list[str]:
        """Lines of a text file without blanks at their ends; none, and a fault, if it is none."""
        self.tables.add(file)
        try:
            return [line.strip() for line in read_text(file).rstrip().splitlines()]
        except (OSError, ValueError) as error:
            self.fault(file, f'cannot be read: {error}')
            return []

    def size_of(self,
                image: Path,
                said: tuple[int, int] | None = None,
                source: Path | None = None) -> tuple[int, int] | None:
        """Width and height of an image; None, and a fault, if they cannot be used.

        Args:
            image: Its file.
            said: What the annotations say; ``None``, or zeros, if they do not.
            source: Their file.
        """
        try:
            size = image_size(image)
        except OSError as error:
            self.reject(image, f'cannot be read: {error}')
            return None
        if said and source and all(said) and size != said:
            self.reject(source, f'says {said[0]} x {said[1]} pixels, {image} has {size[0]} x '
                        f'{size[1]}')
            return None
        return size


def report_skipped(texts: Sequence[str], report: Report) -> None:
    """Say how many samples are left out, if any, and why the first one is."""
    if texts:
        report.remark(
            f'--on-bad-data skip: {len(texts)} samples are left out, the first: {texts[0]}')


def unreported(reading: Reading) -> Reading:
    """Return a reading of test data: nothing uses them, so that what is missing is no fault."""
    return Reading(reading.root, Report(), paths=reading.paths)


def split_folders(folder: Path) -> dict[str, Path]:
    """Folders of training, validation and test below a folder, by the names that they have.

    A name may have a number behind it, as ``train2017``, if one folder of the split alone has.
    """
    entries = sorted(folder.iterdir()) if folder.is_dir() else ()
    folders = [entry for entry in entries if entry.is_dir()]
    found: dict[str, Path] = {}
    for split, names in SPLITS.items():
        named = [entry for entry in folders if entry.name.lower() in names]
        numbered = [entry for entry in folders if without_number(entry.name) in names]
        if named or len(numbered) == 1:
            found[split] = (named or numbered)[0]
    return found


def without_number(name: str) -> str:
    """The name of a folder in lower case, without the year behind it."""
    return name.lower().rstrip('0123456789')


def any_case(suffix: str) -> str:
    """A pattern of names that end so, in upper or lower case, for ``glob``."""
    return '*' + ''.join(f'[{letter.lower()}{letter.upper()}]' for letter in suffix)


def above_images(folder: Path) -> Path:
    """The folder that the nearest ``images`` above is in; the folder itself if none is."""
    folder = Path(os.path.abspath(folder))
    return next((p.parent for p in (folder, *folder.parents) if p.name == 'images'), folder)


def files_below(folder: Path,
                suffixes: Collection[str],
                reading: Reading | None = None) -> list[Path]:
    """All files of a folder and those in it whose names end so, hidden ones left out.

    Args:
        folder: The folder.
        suffixes: In lower case; names may have others.
        reading: Takes the links that lead up or to a folder a second time: they are not followed.
    """
    top = os.path.realpath(folder)
    found, seen = [], {top, *map(str, Path(top).parents)}
    for parent, below, names in os.walk(folder, followlinks=True):
        for name in list(below):
            real = os.path.realpath(os.path.join(parent, name))
            if real in seen:
                below.remove(name)
                if reading:
                    reading.lose('links to folders that were read already are not followed',
                                 reading.source(Path(parent, name)))
            seen.add(real)
        found += [
            Path(parent, name) for name in names
            if not name.startswith('.') and os.path.splitext(name)[1].lower() in suffixes
        ]
    return sorted(found)


def read_text(file: Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not in UTF-8.
    """
    return file.read_text(encoding='utf-8-sig')


def box_around(polygons: Iterable[Sequence[float]]) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of polygons."""
    xs = [x for polygon in polygons for x in polygon[::2]]
    ys = [y for polygon in polygons for y in polygon[1::2]]
    return min(xs), min(ys), max(xs), max(ys)


def are_finite(values: Iterable[float]) -> bool:
    """Whether there is no NaN and no infinity among numbers."""
    try:
        return all(map(math.isfinite, values))
    except OverflowError:  # a whole number beyond all floats
        return False
