"""YOLO's text files: a line an object, of a box or of a polygon, in parts of the image's size."""
from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .instances import (ALL, IMAGES, SPLITS, TEST_LEFT, AnnotatedImage, Instance, Part, Reading,
                        any_case, box_around, files_below, is_finite, part_of, split_folders,
                        text_of)
from .yolo_yaml import (NAMES_FILES, class_names, is_yolo_yaml, listed_images, read_yaml,
                        yaml_files_in)

TOLERANCE = 0.01  # of the image's size, by which rounded coordinates may leave it
NOT_LABELS = (*NAMES_FILES, *(f'{name}.txt' for names in SPLITS.values() for name in names))


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
        files = itertools.chain(files, map(label_file, files_below(path, IMAGES)))
    return any(_has_labels(file) for file in files if file.name.lower() not in NOT_LABELS) \
        and bool(files_below(path, IMAGES))


def _has_labels(file: Path) -> bool:
    try:
        words = text_of(file).split('\n', 1)[0].split()
        return len(words) >= 5 and words[0].isdigit() and is_finite(map(float, words))
    except (OSError, ValueError):
        return False


def read_yolo(path: Path, reading: Reading) -> dict[str, Part]:
    """The parts of a data set in YOLO's form.

    Raises:
        ValueError: If there is more than one YAML file.
    """
    yaml_files = [path] if path.is_file() else yaml_files_in(path)
    if len(yaml_files) > 1:
        raise ValueError(f'{" and ".join(map(str, yaml_files))} may be meant: name one of them')
    if yaml_files:
        names, images = read_yaml(yaml_files[0], reading)
    else:
        names, images = class_names(path, reading), images_without_yaml(path, reading)
    if reading.report.num_faults:
        return {}
    parts, widths = {}, Counter[int]()
    for split, files in images.items():
        if split == 'test':
            reading.lose(TEST_LEFT, count=len(files))
            continue
        found = read_images(files, names, widths, reading)
        if found:
            parts[split] = part_of(found, names)
    _say_if_oriented(parts, reading)
    _refuse_poses(path, widths, reading)
    return parts


def images_without_yaml(path: Path, reading: Reading) -> dict[str, list[Path]]:
    """Images by part, as folders or lists are usually named: images/train, or train/images, or one.

    CVAT writes lists, ``train.txt`` and ``Validation.txt``.
    """
    root = path / 'images' if (path / 'images').is_dir() else path
    folders = split_folders(path / 'images') or split_folders(path)
    if 'train' in folders:
        found = {split: files_below(folder, IMAGES, reading) for split, folder in folders.items()}
    elif lists := _lists_in(path):
        found = {split: listed_images(file, path, reading) for split, file in lists.items()}
    else:
        return {ALL: files_below(root, IMAGES, reading)}
    used = {image for images in found.values() for image in images}
    for image in files_below(root, IMAGES):
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


def read_images(files: list[Path], names: list[str], widths: Counter[int],
                reading: Reading) -> list[AnnotatedImage]:
    """All images of a part with the objects that their files of labels have.

    Args:
        files: The images.
        names: Of the classes.
        widths: Takes how many columns lines have.
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
    found = []
    for image, file in labels.items():
        if size := reading.size_of(image):
            instances = _read_labels(file, names, size, widths, reading)
            found.append(AnnotatedImage(image, size, reading.source(file), instances))
    return found


def _read_labels(file: Path, names: list[str], size: tuple[int, int], widths: Counter[int],
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
        widths[len(line.split())] += 1
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


def _refuse_poses(path: Path, widths: Counter[int], reading: Reading) -> None:
    """Report lines of a class, a box and x, y and visibility of points, if all lines may be so."""
    if len(widths) != 1:
        return
    (columns, count), = widths.items()
    points, rest = divmod(columns - 5, 3)
    if points > 0 and not rest and columns % 2 == 0:
        reading.fault(
            path, f'all {count} lines of labels have {columns} columns, as a class, a box and '
            f'{points} keypoints have: Colonnade has no configs for keypoints')


def _say_if_oriented(parts: dict[str, Part], reading: Reading) -> None:
    """Lines of oriented boxes are those of polygons with four points."""
    masks = [a.get('segmentation') for part in parts.values() for a in part.content['annotations']]
    if masks and all(mask and len(mask[0]) == 8 for mask in masks):
        reading.lose(
            'objects, all that there are, have four points: if these are oriented boxes, they '
            'train as polygons',
            count=len(masks))
