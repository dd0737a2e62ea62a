"""YOLO text files: one box or polygon per line, in fractions of the image size."""
from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count
from colonnade.runtime.images import SUFFIXES

from ..data_index import AnnotatedImage, DataIndex, Instance, index_images
from .data_format import (ALL, SPLITS, TEST_LEFT, ReadContext, are_finite, compute_box, find_files,
                          find_split_folders, match_suffix, read_text)
from .yolo_yaml import (NAMES_FILES, find_yaml_files, is_yolo_yaml, read_class_names,
                        read_image_list, read_yaml)

VISIBILITIES = {'0', '1', '2'}  # keypoint not labeled, hidden, visible
TOLERANCE = 0.01  # fraction of the image by which rounded coordinates may exceed it
NOT_LABELS = (*NAMES_FILES, *(f'{name}.txt' for names in SPLITS.values() for name in names))


@dataclass
class LineStatistics:
    """Statistics of the lines of all label files."""
    widths: Counter[int] = field(default_factory=Counter)  # number of columns -> number of lines
    num_poses: int = 0  # number of lines that look like a box and keypoints (x, y, visibility)
    # File, message and line number of malformed lines.
    errors: list[tuple[Path, str, int]] = field(default_factory=list)

    def add(self, words: list[str]) -> None:
        """Count a line."""
        self.widths[len(words)] += 1
        self.num_poses += len(words) >= 8 and len(words) % 3 == 2 and VISIBILITIES.issuperset(
            re.sub(r'\.0*$', '', flag) for flag in words[7::3])

    @property
    def are_poses(self) -> bool:
        """True if all lines are poses with the same number of keypoints."""
        return len(self.widths) == 1 and self.num_poses == self.widths.total()


def is_yolo(path: Path) -> bool:
    """Return True for a data.yaml, or images with label files next to them or in labels/."""
    if path.is_file():
        return is_yolo_yaml(path)
    if find_yaml_files(path):
        return True
    files: Iterator[Path] = (
        file for below in ('', '*/', 'labels/**/', '*/labels/**/')
        for file in path.glob(below + match_suffix('.txt')))
    if 'images' in path.absolute().parts:
        files = itertools.chain(files, map(find_label_file, find_files(path, SUFFIXES)))
    return any(_has_labels(file) for file in files if file.name.lower() not in NOT_LABELS) \
        and bool(find_files(path, SUFFIXES))


def _has_labels(file: Path) -> bool:
    try:
        words = read_text(file).split('\n', 1)[0].split()
        return len(words) >= 5 and words[0].isdigit() and are_finite(map(float, words))
    except (OSError, ValueError):
        return False


def read_yolo(path: Path, context: ReadContext) -> dict[str, DataIndex]:
    """Return the splits of a dataset in YOLO format."""
    yaml_files = [path] if path.is_file() else find_yaml_files(path)
    if len(yaml_files) > 1:
        raise UserError(f'{path} has several YAML files: pass one of '
                        f'{", ".join(map(str, yaml_files))}')
    if yaml_files:
        names, images = read_yaml(yaml_files[0], context)
    else:
        names, images = read_class_names(path, context), _find_images_by_split(path, context)
    if not names:  # already reported; labels cannot be checked without names
        return {}
    splits, lines = {}, LineStatistics()
    for split, files in images.items():
        if split == 'test':
            context.count_dropped(TEST_LEFT, count=len(files))
        elif found := _read_images(files, names, lines, context):
            splits[split] = index_images(found, names)
    if lines.are_poses:
        (columns, count), = lines.widths.items()
        context.add_error(
            path, f'all {count} label lines have {columns} columns, which fits a class, a box and '
            f'{(columns - 5) // 3} keypoints: Colonnade does not support keypoints')
        return {}
    for file, text, number in lines.errors:
        context.reject(file, text, number)
    _warn_of_equal_polygons(splits, lines, context)
    return splits


def _find_images_by_split(path: Path, context: ReadContext) -> dict[str, list[Path]]:
    """Return images by split: from folder names, from lists as CVAT writes them, or all images."""
    root = path / 'images' if (path / 'images').is_dir() else path
    folders = find_split_folders(path / 'images') or find_split_folders(path)
    if 'train' in folders:
        images = {
            split: find_files(folder, SUFFIXES, context.count_link)
            for split, folder in folders.items()
        }
    else:
        text_files = {file.name.lower(): file for file in sorted(path.glob(match_suffix('.txt')))}
        lists = {
            split: text_files[f'{name}.txt']
            for split, names in SPLITS.items()
            for name in names if f'{name}.txt' in text_files
        }
        if 'train' not in lists or _has_labels(lists['train']):
            return {ALL: find_files(root, SUFFIXES, context.count_link)}
        images = {
            split: read_image_list(file, path,
                                   context.ignore_errors() if split == 'test' else context)
            for split, file in lists.items()
        }
    used = {image for found in images.values() for image in found}
    for image in find_files(root, SUFFIXES):
        if image not in used:
            context.count_dropped('images of no split are not used', context.locate(image))
    return images


def find_label_file(image: Path) -> Path:
    """Return the label file of an image: below labels/ instead of images/, or next to it."""
    file = image.with_suffix('.txt')
    parts = list(image.absolute().parts)
    if 'images' in parts[:-1]:
        parts[len(parts) - 2 - parts[-2::-1].index('images')] = 'labels'
        in_labels = Path(*parts).with_suffix('.txt')
        if in_labels.is_file() or not file.is_file():
            file = in_labels
    upper = file.with_suffix('.TXT')
    return upper if upper.is_file() and not file.is_file() else file


def _read_images(files: list[Path], names: list[str], lines: LineStatistics,
                 context: ReadContext) -> list[AnnotatedImage]:
    """Return the images of a split with the objects in their label files."""
    labels = {image: find_label_file(image) for image in files}
    for file, count in Counter(labels.values()).items():
        if count > 1:
            shared = [image.name for image in files if labels[image] == file]
            context.add_error(file, f'matches several images, {" and ".join(shared)}: rename one')
    for folder in {file.parent for file in labels.values()}:
        for file in set(folder.glob(match_suffix('.txt'))) - set(labels.values()):
            if file.name.lower() not in NOT_LABELS and _has_labels(file):
                context.count_dropped('label files without an image are not used',
                                      context.locate(file))
    context.labels.update(labels.values())
    images = []
    for image, file in labels.items():
        if size := context.read_size(image):
            instances = _read_labels(file, names, size, lines, context)
            if instances is not None:
                images.append(AnnotatedImage(image, size, context.locate(file), instances))
    return images


def _read_labels(file: Path, names: list[str], size: tuple[int, int], lines: LineStatistics,
                 context: ReadContext) -> list[Instance] | None:
    """Return the objects of an image, or None if one of them is malformed."""
    try:
        texts = read_text(file).splitlines()
    except FileNotFoundError:
        context.count_dropped('images without a label file count as images without objects',
                              context.locate(file))
        return []
    except (OSError, ValueError) as error:
        context.reject(file, f'cannot be read: {error}')
        return None
    instances, known, num_errors = [], set(), len(lines.errors)
    for number, line in enumerate(texts, 1):
        if not line.strip():
            continue
        if line in known:
            context.count_dropped('duplicate lines of a label file are omitted',
                                  context.locate(file, number))
            continue
        known.add(line)
        lines.add(line.split())
        try:
            label, numbers = _parse_line(line, names, context)
        except ValueError as error:
            lines.errors.append((file, str(error), number))
            continue
        name, location, polygons = names[label], context.locate(file, number), []
        if len(numbers) == 4:
            x, y, w, h = numbers
            box = ((x - w / 2) * size[0], (y - h / 2) * size[1], (x + w / 2) * size[0],
                   (y + h / 2) * size[1])
        else:
            polygons = [[value * size[index % 2] for index, value in enumerate(numbers)]]
            box = compute_box(polygons)
        instances.append(Instance(name, box, polygons, location))
    return instances if len(lines.errors) == num_errors else None


def _parse_line(line: str, names: list[str], context: ReadContext) -> tuple[int, list[float]]:
    """Return the class of a line, and the coordinates of its box or polygon."""
    try:
        label, *numbers = map(float, line.split())
    except ValueError:
        raise UserError(f'must be a class and numbers, got {line.strip()[:60]!r}') from None
    if len(numbers) < 4:
        raise UserError('must be "class x y width height" or "class x y x y x y ...", got '
                        f'{format_count(len(numbers) + 1, "column")}')
    if len(numbers) % 2:
        context.count_dropped('numbers after a box or polygon are assumed to be confidences, and '
                              'omitted')
        numbers.pop()
    if not label.is_integer() or not 0 <= label < len(names):
        raise UserError(f'class must be from 0 to {len(names) - 1}, got {label:g}')
    outside = [value for value in numbers if not -TOLERANCE <= value <= 1 + TOLERANCE]
    if outside:
        raise UserError(f'coordinates must be normalized to the range 0 to 1, got {outside[0]:g}')
    return int(label), numbers


def _warn_of_equal_polygons(splits: dict[str, DataIndex], lines: LineStatistics,
                            context: ReadContext) -> None:
    """Warn that polygons can be oriented boxes or keypoints if all have the same length."""
    masks: list[Any] = [
        row.get('segmentation') for index in splits.values() for row in index.objects
    ]
    if not masks or not all(masks) or len(lines.widths) > 1:
        return
    number = len(masks[0][0]) // 2
    meaning = 'oriented boxes' if number == 4 else 'boxes with keypoints'
    if number == 4 or number > 4 and len(masks) > 1:
        context.count_dropped(
            f'all polygons have {number} points: even if they are {meaning}, training uses them '
            'as polygons',
            count=len(masks))
