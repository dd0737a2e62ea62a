"""YOLO's text files: a line an object, of a box or of a polygon, in parts of the image's size."""
from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .instances import (ALL, IMAGES, TEST_LEFT, AnnotatedImage, Instance, Part, Reading, box_around,
                        files_below, is_finite, part_of, split_folders, text_of)
from .yolo_yaml import NAMES_FILES, class_names, is_yolo_yaml, read_yaml, yaml_in

TOLERANCE = 0.01  # of the image's size, by which rounded coordinates may leave it
NOT_LABELS = (*NAMES_FILES, 'train.txt', 'val.txt', 'test.txt')


def is_yolo(path: Path) -> bool:
    """Whether there is a data.yaml, or images, with text files of labels beside or in labels/."""
    if path.is_file():
        return is_yolo_yaml(path)
    if yaml_in(path):
        return True
    below = ('*.txt', '*/*.txt', 'labels/**/*.txt', '*/labels/**/*.txt')
    files: Iterator[Path] = (file for pattern in below for file in path.glob(pattern))
    if 'images' in path.absolute().parts:
        files = itertools.chain(files, map(label_file, files_below(path, IMAGES)))
    return any(_has_labels(file) for file in files if file.name not in NOT_LABELS) \
        and any(images_without_yaml(path).values())


def _has_labels(file: Path) -> bool:
    try:
        words = text_of(file).split('\n', 1)[0].split()
        return len(words) >= 5 and words[0].isdigit() and is_finite(map(float, words))
    except (OSError, ValueError):
        return False


def read_yolo(path: Path, reading: Reading) -> dict[str, Part]:
    """The parts of a data set in YOLO's form."""
    yaml_file = path if path.is_file() else yaml_in(path)
    if yaml_file:
        names, images = read_yaml(yaml_file, reading)
    else:
        names, images = class_names(path, reading), images_without_yaml(path)
    if reading.report.num_faults:
        return {}
    parts = {}
    for split, files in images.items():
        if split == 'test':
            reading.lose(TEST_LEFT, count=len(files))
            continue
        found = read_images(files, names, reading)
        if found:
            parts[split] = part_of(found, names)
    _say_if_oriented(parts, reading)
    return parts


def images_without_yaml(path: Path) -> dict[str, list[Path]]:
    """Images by part, as folders are usually named: images/train, or train/images, or one."""
    folders = split_folders(path / 'images') or split_folders(path)
    if 'train' not in folders:
        folders = {ALL: path / 'images' if (path / 'images').is_dir() else path}
    return {split: files_below(folder, IMAGES) for split, folder in folders.items()}


def label_file(image: Path) -> Path:
    """Its labels: below labels/ where the image is below images/, or beside it."""
    parts = list(image.absolute().parts)
    if 'images' in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index('images')
        parts[last] = 'labels'
        found = Path(*parts).with_suffix('.txt')
        if found.is_file() or not image.with_suffix('.txt').is_file():
            return found
    return image.with_suffix('.txt')


def read_images(files: list[Path], names: list[str], reading: Reading) -> list[AnnotatedImage]:
    """All images of a part with the objects that their files of labels have."""
    labels = {image: label_file(image) for image in files}
    for file, count in Counter(labels.values()).items():
        if count > 1:
            shared = [image.name for image in files if labels[image] == file]
            reading.fault(file, f'it would be the labels of {" and ".join(shared)}: rename one')
    for folder in {file.parent for file in labels.values()}:
        for file in set(folder.glob('*.txt')) - set(labels.values()):
            if file.name not in NOT_LABELS and _has_labels(file):
                reading.lose('files of labels without an image are not used', reading.source(file))
    found = []
    for image, file in labels.items():
        if size := reading.size_of(image):
            instances = _read_labels(file, names, size, reading)
            found.append(AnnotatedImage(image, size, reading.source(file), instances))
    return found


def _read_labels(file: Path, names: list[str], size: tuple[int, int],
                 reading: Reading) -> list[Instance]:
    try:
        lines = text_of(file).splitlines()
    except FileNotFoundError:
        reading.lose('images without a file of labels are taken for images without objects',
                     reading.source(file))
        return []
    except (OSError, ValueError) as error:
        reading.fault(file, f'cannot be read: {error}')
        return []
    found, seen = [], set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if line in seen:
            reading.lose('lines that repeat another of their file are left out',
                         reading.source(file, number))
            continue
        seen.add(line)
        try:
            label, numbers = parse_line(line, names, reading)
        except ValueError as error:
            reading.fault(file, str(error), number)
        else:
            found.append(_instance(names[label], numbers, size, reading.source(file, number)))
    return found


def parse_line(line: str, names: list[str], reading: Reading) -> tuple[int, list[float]]:
    """The class of a line, and the numbers of its box or polygon.

    Raises:
        ValueError: If it is no such line.
    """
    try:
        label, *numbers = map(float, line.split())
    except ValueError:
        raise ValueError(f'must be a class and numbers, got {line.strip()[:60]!r}') from None
    if len(numbers) < 4:
        raise ValueError('must be `class x y width height` or `class x y x y x y ...`, got '
                         f'{len(numbers) + 1} columns')
    if len(numbers) % 2:
        reading.lose('numbers behind a box or polygon are taken for confidences and left out')
        numbers.pop()
    if not label.is_integer() or not 0 <= label < len(names):
        raise ValueError(f'class {label:g} has no name: there are {len(names)}, from 0 on')
    if not all(-TOLERANCE <= value <= 1 + TOLERANCE for value in numbers):
        raise ValueError('coordinates must be parts of the image, 0 to 1, got '
                         f'{next(v for v in numbers if not -TOLERANCE <= v <= 1 + TOLERANCE):g}')
    return int(label), numbers


def _instance(name: str, numbers: list[float], size: tuple[int, int], source: str) -> Instance:
    width, height = size
    if len(numbers) == 4:
        x, y, w, h = numbers
        box = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
        return Instance(name, box, [], source)
    polygon = [value * size[place % 2] for place, value in enumerate(numbers)]
    return Instance(name, box_around([polygon]), [polygon], source)


def _say_if_oriented(parts: dict[str, Part], reading: Reading) -> None:
    """Lines of oriented boxes are those of polygons with four points."""
    masks = [a.get('segmentation') for part in parts.values() for a in part.content['annotations']]
    if masks and all(mask and len(mask[0]) == 8 for mask in masks):
        reading.lose(
            'objects, all that there are, have four points: if these are oriented boxes, they '
            'train as polygons',
            count=len(masks))
