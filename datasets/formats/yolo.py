"""YOLO's text files: a line an object, of a box or of a polygon, in parts of the image's size."""
from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.common.errors import UserError
from colonnade.runtime.images import SUFFIXES

from ..data_index import AnnotatedImage, DataIndex, Instance, index_images
from .instance_records import (ALL, SPLITS, TEST_LEFT, Reading, any_case, are_finite, box_around,
                               files_below, read_text, split_folders, unreported)
from .yolo_yaml import (NAMES_FILES, is_yolo_yaml, read_class_names, read_image_list, read_yaml,
                        yaml_files_in)

VISIBILITIES = {'0', '1', '2'}  # of a keypoint: not labelled, hidden, seen
TOLERANCE = 0.01  # of the image's size, by which rounded coordinates may leave it
NOT_LABELS = (*NAMES_FILES, *(f'{name}.txt' for names in SPLITS.values() for name in names))


@dataclass
class Lines:
    """The lines of all files of labels.

    Attributes:
        widths: How many lines have how many columns.
        num_poses: How many lines have a box and x, y and visibility (0, 1 or 2) of points.
        faults: File, text and number of the lines that are wrong.
    """
    widths: Counter[int] = field(default_factory=Counter)
    num_poses: int = 0
    faults: list[tuple[Path, str, int]] = field(default_factory=list)

    def add(self, words: list[str]) -> None:
        """Count a line."""
        self.widths[len(words)] += 1
        self.num_poses += len(words) >= 8 and len(words) % 3 == 2 and VISIBILITIES.issuperset(
            re.sub(r'\.0*$', '', flag) for flag in words[7::3])

    def are_poses(self) -> bool:
        """Return True if all lines are of poses with as many keypoints."""
        return len(self.widths) == 1 and self.num_poses == self.widths.total()


def is_yolo(path: Path) -> bool:
    """Whether there is a data.yaml, or images, with text files of labels beside or in labels/."""
    if path.is_file():
        return is_yolo_yaml(path)
    if yaml_files_in(path):
        return True
    files: Iterator[Path] = (
        file for below in ('', '*/', 'labels/**/', '*/labels/**/')
        for file in path.glob(below + any_case('.txt')))
    if 'images' in path.absolute().parts:
        files = itertools.chain(files, map(label_file, files_below(path, SUFFIXES)))
    return any(_has_labels(file) for file in files if file.name.lower() not in NOT_LABELS) \
        and bool(files_below(path, SUFFIXES))


def _has_labels(file: Path) -> bool:
    try:
        words = read_text(file).split('\n', 1)[0].split()
        return len(words) >= 5 and words[0].isdigit() and are_finite(map(float, words))
    except (OSError, ValueError):
        return False


def read_yolo(path: Path, reading: Reading) -> dict[str, DataIndex]:
    """The parts of a data set in YOLO's form.

    Raises:
        ValueError: If there is more than one YAML file.
    """
    yaml_files = [path] if path.is_file() else yaml_files_in(path)
    if len(yaml_files) > 1:
        raise UserError(f'{" and ".join(map(str, yaml_files))} may be meant: name one of them')
    if yaml_files:
        names, images = read_yaml(yaml_files[0], reading)
    else:
        names, images = read_class_names(path, reading), images_without_yaml(path, reading)
    if not names:  # which is reported; labels cannot be judged without
        return {}
    parts, lines = {}, Lines()
    for split, files in images.items():
        if split == 'test':
            reading.lose(TEST_LEFT, count=len(files))
            continue
        found = read_images(files, names, lines, reading)
        if found:
            parts[split] = index_images(found, names)
    if lines.are_poses():
        _refuse_poses(path, lines, reading)
        return {}
    for file, text, number in lines.faults:
        reading.reject(file, text, number)
    _remark_on_shapes(parts, lines, reading)
    return parts


def images_without_yaml(path: Path, reading: Reading) -> dict[str, list[Path]]:
    """Images by part, as folders or lists are usually named: images/train, or train/images, or one.

    CVAT writes lists, ``train.txt`` and ``Validation.txt``.
    """
    root = path / 'images' if (path / 'images').is_dir() else path
    folders = split_folders(path / 'images') or split_folders(path)
    if 'train' in folders:
        found = {split: files_below(folder, SUFFIXES, reading) for split, folder in folders.items()}
    elif lists := _lists_in(path):
        found = {
            split: read_image_list(file, path,
                                   unreported(reading) if split == 'test' else reading)
            for split, file in lists.items()
        }
    else:
        return {ALL: files_below(root, SUFFIXES, reading)}
    used = {image for images in found.values() for image in images}
    for image in files_below(root, SUFFIXES):
        if image not in used:
            reading.lose('images of no part are not used', reading.source(image))
    return found


def _lists_in(path: Path) -> dict[str, Path]:
    """Text files that list the images of parts, if one is of training."""
    files = {file.name.lower(): file for file in sorted(path.glob(any_case('.txt')))}
    found = {
        split: files[f'{name}.txt']
        for split, names in SPLITS.items()
        for name in names if f'{name}.txt' in files
    }
    return found if 'train' in found and not _has_labels(found['train']) else {}


def label_file(image: Path) -> Path:
    """Its labels: below labels/ where the image is below images/, or beside it."""
    file = _label_file(image)
    upper = file.with_suffix('.TXT')
    return upper if upper.is_file() and not file.is_file() else file


def _label_file(image: Path) -> Path:
    parts = list(image.absolute().parts)
    if 'images' in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index('images')
        parts[last] = 'labels'
        found = Path(*parts).with_suffix('.txt')
        if found.is_file() or not image.with_suffix('.txt').is_file():
            return found
    return image.with_suffix('.txt')


def read_images(files: list[Path], names: list[str], lines: Lines,
                reading: Reading) -> list[AnnotatedImage]:
    """All images of a part with the objects that their files of labels have.

    Args:
        files: The images.
        names: Of the classes.
        lines: Counts lines, and takes those that are wrong.
        reading: Takes what is wrong.
    """
    labels = {image: label_file(image) for image in files}
    for file, count in Counter(labels.values()).items():
        if count > 1:
            shared = [image.name for image in files if labels[image] == file]
            reading.fault(file, f'it would be the labels of {" and ".join(shared)}: rename one')
    for folder in {file.parent for file in labels.values()}:
        for file in set(folder.glob(any_case('.txt'))) - set(labels.values()):
            if file.name.lower() not in NOT_LABELS and _has_labels(file):
                reading.lose('files of labels without an image are not used', reading.source(file))
    reading.labels.update(labels.values())
    found = []
    for image, file in labels.items():
        if size := reading.size_of(image):
            instances = _read_labels(file, names, size, lines, reading)
            if instances is not None:
                found.append(AnnotatedImage(image, size, reading.source(file), instances))
    return found


def _read_labels(file: Path, names: list[str], size: tuple[int, int], lines: Lines,
                 reading: Reading) -> list[Instance] | None:
    """Return the objects of an image; None if one of them is wrong."""
    try:
        texts = read_text(file).splitlines()
    except FileNotFoundError:
        reading.lose('images without a file of labels are taken for images without objects',
                     reading.source(file))
        return []
    except (OSError, ValueError) as error:
        reading.reject(file, f'cannot be read: {error}')
        return None
    found, seen, num_faults = [], set(), len(lines.faults)
    for number, line in enumerate(texts, 1):
        if not line.strip():
            continue
        if line in seen:
            reading.lose('lines that repeat another of their file are left out',
                         reading.source(file, number))
            continue
        seen.add(line)
        lines.add(line.split())
        try:
            label, numbers = parse_line(line, names, reading)
        except ValueError as error:
            lines.faults.append((file, str(error), number))
        else:
            found.append(_make_instance(names[label], numbers, size, reading.source(file, number)))
    return found if len(lines.faults) == num_faults else None


def parse_line(line: str, names: list[str], reading: Reading) -> tuple[int, list[float]]:
    """The class of a line, and the numbers of its box or polygon.

    Raises:
        ValueError: If it is no such line.
    """
    try:
        label, *numbers = map(float, line.split())
    except ValueError:
        raise UserError(f'must be a class and numbers, got {line.strip()[:60]!r}') from None
    if len(numbers) < 4:
        raise UserError('must be `class x y width height` or `class x y x y x y ...`, got '
                        f'{len(numbers) + 1} columns')
    if len(numbers) % 2:
        reading.lose('numbers behind a box or polygon are taken for confidences and left out')
        numbers.pop()
    if not label.is_integer() or not 0 <= label < len(names):
        raise UserError(f'class {label:g} has no name: there are {len(names)}, from 0 on')
    if not all(-TOLERANCE <= value <= 1 + TOLERANCE for value in numbers):
        raise UserError('coordinates must be parts of the image, 0 to 1, got '
                        f'{next(v for v in numbers if not -TOLERANCE <= v <= 1 + TOLERANCE):g}')
    return int(label), numbers


def _make_instance(name: str, numbers: list[float], size: tuple[int, int], source: str) -> Instance:
    width, height = size
    if len(numbers) == 4:
        x, y, w, h = numbers
        box = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
        return Instance(name, box, [], source)
    polygon = [value * size[place % 2] for place, value in enumerate(numbers)]
    return Instance(name, box_around([polygon]), [polygon], source)


def _refuse_poses(path: Path, lines: Lines, reading: Reading) -> None:
    """Report lines of a class, a box and x, y and visibility of points."""
    (columns, count), = lines.widths.items()
    reading.fault(
        path, f'all {count} lines of labels have {columns} columns, as a class, a box and '
        f'{(columns - 5) // 3} keypoints have: Colonnade has no configs for keypoints')


def _remark_on_shapes(parts: dict[str, DataIndex], lines: Lines, reading: Reading) -> None:
    """Say that polygons may be oriented boxes or keypoints if all have as many points."""
    masks: list[Any] = [a.get('segmentation') for i in parts.values() for a in i.objects]
    if not masks or not all(masks) or len(lines.widths) > 1:
        return
    number = len(masks[0][0]) // 2
    what = 'oriented boxes' if number == 4 else 'boxes with keypoints'
    if number == 4 or number > 4 and len(masks) > 1:
        reading.lose(
            f'objects, all that there are, have {number} points: if these are {what}, they train '
            'as polygons',
            count=len(masks))
