"""The YAML file of a data set in YOLO's form: where its images are, and what classes are called."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from colonnade.runtime.images import SUFFIXES

from ..validation.validation_report import abbreviate, find_repeated
from .instance_records import SPLITS, Reading, above_images, files_below, read_text, unreported

NOT_UTF8 = 'names of classes in a file that is not in UTF-8: read as Latin-1'
MOST_CLASSES = 2**16  # that nc can count without names
NAMES_FILES = ('classes.txt', 'obj.names', 'names.txt')


def yaml_files_in(folder: Path) -> list[Path]:
    """The YAML files of a folder that name classes."""
    return sorted(file for file in folder.glob('*.[yY]*[mM][lL]') if is_yolo_yaml(file))


def is_yolo_yaml(file: Path) -> bool:
    """Whether a YAML file has the keys of a data set, malformed or not."""
    if file.suffix.lower() not in ('.yaml', '.yml'):
        return False
    try:
        text, _ = read_names_text(file)
    except (OSError, ValueError):
        return False
    return all(re.search(rf'^{key}\s*:', text, re.MULTILINE) for key in ('(names|nc)', 'train'))


def read_yaml(file: Path, reading: Reading) -> tuple[list[str], dict[str, list[Path]]]:
    """Names of classes, and images of each part."""
    reading.tables.add(file)
    try:
        text, is_utf8 = read_names_text(file)
        content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reading.fault(file, f'cannot be read: {" ".join(str(error).split())}')
        return [], {}
    if not is_utf8:
        reading.repair(NOT_UTF8, reading.source(file))
    if not isinstance(content, dict):
        reading.fault(file, f'must have names, train and val, got {abbreviate(content)}')
        return [], {}
    if content.get('kpt_shape') or content.get('task') in ('pose', 'obb'):
        what = 'oriented boxes' if content.get('task') == 'obb' else 'keypoints'
        reading.fault(file, f'its labels are {what}, for which Colonnade has no configs')
        return [], {}
    names, images = _parse_names(file, content, reading), {}
    for split, keys in SPLITS.items():
        given = next((content[key] for key in keys if content.get(key)), None)
        if given is None:
            continue
        entries = given if isinstance(given, list) else [given]
        taking = unreported(reading) if split == 'test' else reading
        found = [
            image for entry in entries
            for image in _find_images(file, content, split, entry, taking)
        ]
        if found or split != 'test':
            images[split] = list(dict.fromkeys(found))
    return names, images


def _parse_names(file: Path, content: dict[str, Any], reading: Reading) -> list[str]:
    """Names of the classes in order, from a list or from a mapping of numbers."""
    names, number = content.get('names'), content.get('nc')
    if names is None and type(number) is int and 0 < number <= MOST_CLASSES:
        reading.lose('nc without names: classes are called class 0, class 1 and so on',
                     reading.source(file))
        return [f'class {place}' for place in range(number)]
    if isinstance(names, dict):
        if sorted(map(str, names)) != sorted(map(str, range(len(names)))):
            reading.fault(
                file, 'names must be numbered from 0 without gaps, got '
                f'{abbreviate(list(names))}')
            return []
        names = [names[key] for key in sorted(names, key=int)]
    if not isinstance(names, list) or not names:
        reading.fault(file, f'names must be a list of names of classes, got {abbreviate(names)}')
        return []
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            reading.fault(file, f'names must be text, got {abbreviate(name)}: put quotes around it')
    names = [str(name) for name in names]
    if number is not None and number != len(names):
        reading.fault(file, f'nc is {abbreviate(number)}, and there are {len(names)} names')
    for name in find_repeated(names):
        reading.fault(file, f'names: more than one is {name!r}')
    return names


def _find_images(file: Path, content: dict[str, Any], split: str, entry: Any,
                 reading: Reading) -> list[Path]:
    """The images that one entry stands for: a folder, or a text file that lists them."""
    if not isinstance(entry, str):
        reading.fault(file,
                      f'{split} must be a folder or a list of images, got {abbreviate(entry)}')
        return []
    root = file.parent / str(content.get('path') or '')
    ways = [root / entry, file.parent / entry]
    if entry.startswith('../'):  # as exporters write that have moved the file up
        ways += [way.parent / entry.removeprefix('../') for way in (root / 'x', file)]
    found = next((way for way in ways if way.exists()), None)
    if found is None:
        reading.fault(file, f'{split}: there is no {ways[0]}')
        return []
    if found.is_dir():
        images = files_below(found, SUFFIXES, reading)
    else:
        images = read_image_list(found, root, reading)
    if not images:
        reading.fault(file, f'{split}: there are no images in {found}')
    return images


def read_image_list(file: Path, root: Path, reading: Reading) -> list[Path]:
    """The images that a text file names, a line each, from its own folder on or from another."""
    images = []
    for number, name in enumerate(reading.lines_of(file), 1):
        if not name:
            continue
        below = name.removeprefix('data/')  # CVAT's name of the folder of the list
        ways = file.parent / name, root / name, file.parent / below
        found = [way for way in ways if way.is_file()]
        if not found:
            reading.fault(file, f'there is no {file.parent / name}', number)
        images += found[:1]
    return images


def read_class_names(folder: Path, reading: Reading) -> list[str]:
    """Names of classes, a line each, from a file in the folder, its labels/, or above images/."""
    for parent in (folder, folder / 'labels', folder.absolute().parent, above_images(folder)):
        for name in NAMES_FILES:
            if (parent / name).is_file():
                return _names_in(parent / name, reading)
    reading.fault(
        folder, 'nothing names the classes: write data.yaml, or classes.txt with a name '
        'a line, to this folder')
    return []


def read_names_text(file: Path) -> tuple[str, bool]:
    """Return the text of a file that people write names in, and whether it is in UTF-8.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is neither in UTF-8 nor in Windows' Latin-1.
    """
    try:
        return read_text(file), True
    except UnicodeDecodeError:
        return file.read_text(encoding='cp1252'), False


def _names_in(file: Path, reading: Reading) -> list[str]:
    try:
        text, is_utf8 = read_names_text(file)
    except (OSError, ValueError) as error:
        reading.fault(file, f'cannot be read: {error}')
        return []
    if not is_utf8:
        reading.repair(NOT_UTF8, reading.source(file))
    names = [line.strip() for line in text.rstrip().splitlines()]
    if '' in names:
        reading.fault(file, 'the line is empty', names.index('') + 1)
    for name in find_repeated(filter(None, names)):
        reading.fault(file, f'more than one class is {name!r}')
    return names
