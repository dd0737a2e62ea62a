"""YAML file and class names of a YOLO dataset."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from colonnade.runtime.images import SUFFIXES

from ..validation.validation_report import abbreviate, find_repeated
from .data_format import SPLITS, ReadContext, find_files, find_root_above_images, read_text

NOT_UTF8 = 'class names in a file that is not in UTF-8: read as Latin-1'
MAX_CLASSES = 2**16  # limit of nc without names
NAMES_FILES = ('classes.txt', 'obj.names', 'names.txt')


def find_yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder that describe a dataset."""
    return sorted(file for file in folder.glob('*.[yY]*[mM][lL]') if is_yolo_yaml(file))


def is_yolo_yaml(file: Path) -> bool:
    """Return True if a YAML file, even a malformed one, has the keys of a dataset."""
    if file.suffix.lower() not in ('.yaml', '.yml'):
        return False
    try:
        text, _ = _decode_names(file)
    except (OSError, ValueError):
        return False
    return all(re.search(rf'^{key}\s*:', text, re.MULTILINE) for key in ('(names|nc)', 'train'))


def read_yaml(file: Path, context: ReadContext) -> tuple[list[str], dict[str, list[Path]]]:
    """Return the class names, and the images of each split."""
    context.tables.add(file)
    try:
        text, is_utf8 = _decode_names(file)
        content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        context.add_error(file, f'cannot be read: {" ".join(str(error).split())}')
        return [], {}
    if not is_utf8:
        context.count_repair(NOT_UTF8, context.locate(file))
    if not isinstance(content, dict):
        context.add_error(file, f'must have names, train and val, got {abbreviate(content)}')
        return [], {}
    if content.get('kpt_shape') or content.get('task') in ('pose', 'obb'):
        labels = 'oriented boxes' if content.get('task') == 'obb' else 'keypoints'
        context.add_error(file, f'its labels are {labels}, which Colonnade does not support')
        return [], {}
    images = {}
    names = _parse_names(file, content, context)
    for split, keys in SPLITS.items():
        value = next((content[key] for key in keys if content.get(key)), None)
        if value is None:
            continue
        split_context = context.ignore_errors() if split == 'test' else context
        found = [
            image for entry in (value if isinstance(value, list) else [value])
            for image in _find_images(file, content, split, entry, split_context)
        ]
        if found or split != 'test':
            images[split] = list(dict.fromkeys(found))
    return names, images


def _parse_names(file: Path, content: dict[str, Any], context: ReadContext) -> list[str]:
    names, number = content.get('names'), content.get('nc')
    if names is None and type(number) is int and 0 < number <= MAX_CLASSES:
        context.count_dropped('nc without names: classes are named class 0, class 1 and so on',
                              context.locate(file))
        return [f'class {index}' for index in range(number)]
    if isinstance(names, dict):
        if sorted(map(str, names)) != sorted(map(str, range(len(names)))):
            context.add_error(
                file, f'names must be numbered from 0 without gaps, got {abbreviate(list(names))}')
            return []
        names = [names[key] for key in sorted(names, key=int)]
    if not isinstance(names, list) or not names:
        context.add_error(file, f'names must be a list of class names, got {abbreviate(names)}')
        return []
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            context.add_error(
                file, f'each name must be a string, got {abbreviate(name)}: put it in quotes')
    names = [str(name) for name in names]
    if number is not None and number != len(names):
        context.add_error(file, f'nc is {abbreviate(number)}, but there are {len(names)} names')
    for name in find_repeated(names):
        context.add_error(file, f'names: {name!r} is duplicated')
    return names


def _find_images(file: Path, content: dict[str, Any], split: str, entry: Any,
                 context: ReadContext) -> list[Path]:
    """Return the images of an entry, which is a folder or a text file with a list."""
    if not isinstance(entry, str):
        context.add_error(file,
                          f'{split} must be a folder or a list of images, got {abbreviate(entry)}')
        return []
    root = file.parent / str(content.get('path') or '')
    candidates = [root / entry, file.parent / entry]
    if entry.startswith('../'):  # some exporters move the YAML file up, but keep its paths
        candidates += [
            path.parent / entry.removeprefix('../') for path in (root / 'x', file)
        ]  # yapf: disable
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        context.add_error(file, f'{split}: {candidates[0]} does not exist')
        return []
    images = find_files(path, SUFFIXES, context.count_link) if path.is_dir() else \
        read_image_list(path, root, context)
    if not images:
        context.add_error(file, f'{split}: {path} has no images')
    return images


def read_image_list(file: Path, root: Path, context: ReadContext) -> list[Path]:
    """Return the images in a text file, relative to its folder or to a root."""
    images = []
    for number, name in enumerate(context.read_lines(file), 1):
        if not name:
            continue
        without_data = name.removeprefix('data/')  # CVAT's name for the folder of the list
        candidates = file.parent / name, root / name, file.parent / without_data
        existing = [candidate for candidate in candidates if candidate.is_file()]
        if not existing:
            context.add_error(file, f'{file.parent / name} does not exist', number)
        images += existing[:1]
    return images


def read_class_names(folder: Path, context: ReadContext) -> list[str]:
    """Return class names from a text file in the folder, its labels/, or above images/."""
    parents = (folder, folder / 'labels', folder.absolute().parent, find_root_above_images(folder))
    files = (parent / name for parent in parents for name in NAMES_FILES)
    file = next(filter(Path.is_file, files), None)
    if file is None:
        context.add_error(
            folder, 'has no class names: add data.yaml, or classes.txt with one name per line')
        return []
    try:
        text, is_utf8 = _decode_names(file)
    except (OSError, ValueError) as error:
        context.add_error(file, f'cannot be read: {error}')
        return []
    if not is_utf8:
        context.count_repair(NOT_UTF8, context.locate(file))
    names = [line.strip() for line in text.rstrip().splitlines()]
    if '' in names:
        context.add_error(file, 'the line is empty', names.index('') + 1)
    for name in find_repeated(filter(None, names)):
        context.add_error(file, f'the class {name!r} is duplicated')
    return names


def _decode_names(file: Path) -> tuple[str, bool]:
    """Return the text of a file with names, and whether it is in UTF-8, not in Windows Latin-1."""
    try:
        return read_text(file), True
    except UnicodeDecodeError:
        return file.read_text(encoding='cp1252'), False
