"""Tables of classes and colors, as annotation programs export them."""
from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names

from ..custom.label_maps import IGNORED
from ..validation.validation_report import abbreviate, find_repeated

FILES = ('class_dict.csv', 'class_dict_seg.csv', 'labelmap.txt', 'label_colors.txt', 'colors.txt',
         'colours.txt', 'colors.csv', 'colours.csv', 'colors.json', 'colours.json', 'palette.csv',
         'palette.json', 'palette.txt')  # names that exporters use
UNLABELED = ('void', 'unlabelled', 'unlabeled', 'ignore', 'ignored')
NAMES, CHANNELS = ('name', 'class', 'label', 'title'), (('r', 'red'), ('g', 'green'), ('b', 'blue'))
Color = tuple[int, int, int]


@dataclass(frozen=True)
class ColorTable:
    """Classes and colors.

    Attributes:
        classes: Names of the classes, in the order of labels.
        colors: RGB color of each class.
        unlabeled: Colors of pixels to ignore.
        file: File of the table.
    """
    classes: tuple[str, ...]
    colors: tuple[Color, ...]
    unlabeled: tuple[Color, ...]
    file: Path

    @property
    def all_colors(self) -> tuple[Color, ...]:
        """Colors of classes and of unlabeled pixels."""
        return (*self.colors, *self.unlabeled)


def read_color_table(file: Path) -> ColorTable:
    """Return the table in a CSV, text or JSON file.

    Rows named ``void``, ``unlabeled`` or ``ignore`` are for pixels to ignore.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is malformed, or a name or color is duplicated.
    """
    try:
        text = file.read_text(encoding='utf-8-sig')
        rows = list(
            parse_json(json.loads(text)) if file.suffix.lower() == '.json' else parse_text(text))
    except (ValueError, RecursionError, csv.Error) as error:
        raise UserError(f'{file}: {error}') from error
    if not rows:
        raise UserError(f'{file}: expected lines with name,r,g,b, got none')
    for what, values in (('name', [name for name, _ in rows]), ('color', [c for _, c in rows])):
        if repeated := find_repeated(values):
            raise UserError(f'{file}: the {what} {format_names(repeated)} is duplicated')
    labeled = [(name, color) for name, color in rows if name.lower() not in UNLABELED]
    if len(labeled) > IGNORED:
        raise UserError(f'{file}: label maps can have {IGNORED} classes, got {len(labeled)}')
    unlabeled = tuple(color for name, color in rows if name.lower() in UNLABELED)
    return ColorTable(
        tuple(name for name, _ in labeled), tuple(color for _, color in labeled), unlabeled, file)


def parse_text(text: str) -> Iterator[tuple[str, Color]]:
    """Yield the rows of CSV with or without a header, of ``r g b name`` or of ``name:r,g,b::``.

    Raises:
        ValueError: If a line is malformed.
    """
    order = delimiter = None
    for number, line in enumerate(text.split('\n'), 1):
        line = line.strip()
        if not line or line.startswith('#'):
            continue
        cells = _split_line(line, delimiter)
        if order is None and (order := _parse_header(cells)):
            delimiter = _find_delimiter(line)
            continue
        if order is None and len(cells) == 4 and all(map(str.isdigit, cells)):
            raise UserError(f'line {number}: it is unclear which value is the name: add a header '
                            f'name,r,g,b above {abbreviate(line)}')
        columns = order or ((3, 0, 1, 2) if all(map(str.isdigit, cells[:3])) else (0, 1, 2, 3))
        if len(cells) <= max(columns):
            raise UserError(f'line {number}: expected name,r,g,b, got {abbreviate(line)}')
        name, *values = (cells[column] for column in columns)
        yield _check_row(name, values, f'line {number}')


def _find_delimiter(line: str) -> str | None:
    return next((mark for mark in ';,\t' if mark in line), None)


def _split_line(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        if match := re.fullmatch(r'(.+?):\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*(:.*)?', line):
            return list(match.groups()[:4])  # labelmap.txt, whose lines end in parts and actions
        if match := re.fullmatch(r'(\d+)\s+(\d+)\s+(\d+)\s+(.+)', line):
            return list(match.groups())
        delimiter = _find_delimiter(line)
    if delimiter is None:
        return line.split()
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


def _parse_header(cells: list[str]) -> tuple[int, ...] | None:
    """Return the columns of name, red, green and blue, or None if the cells are not a header."""
    lower = [cell.lower() for cell in cells]
    columns = [
        next((lower.index(word) for word in words if word in lower), -1)
        for words in (NAMES, *CHANNELS)
    ]
    return None if -1 in columns else tuple(columns)


def parse_json(content: Any) -> Iterator[tuple[str, Color]]:
    """Yield the rows of ``{name: [r, g, b]}`` or ``[{"name": ..., "color": ...}]``.

    Both can be the value of a key ``classes``.
    """
    if isinstance(content, dict) and isinstance(content.get('classes'), list):
        content = content['classes']
    if isinstance(content, dict):
        entries = list(content.items())
    elif isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        entries = [(next((entry[key] for key in NAMES if key in entry),
                         None), entry.get('color', entry.get('colour'))) for entry in content]
    else:
        raise UserError('expected {"name": [r, g, b], ...}, or a list of {"name": ..., "color": '
                        f'[r, g, b]}}, got {abbreviate(content)}')
    for number, (name, color) in enumerate(entries, 1):
        match = isinstance(color, str) and re.fullmatch('#?([0-9a-fA-F]{6})', color.strip())
        values = list(bytes.fromhex(match[1])) if match else color
        yield _check_row(name, values, f'entry {number}')


def _check_row(name: Any, values: Any, place: str) -> tuple[str, Color]:
    if not isinstance(name, str) or not name.strip():
        raise UserError(f'{place}: expected the name of a class, got {abbreviate(name)}')
    try:
        channels = [int(value) for value in values]
    except (TypeError, ValueError):
        channels = []
    if len(channels) != 3 or not all(0 <= value <= 255 for value in channels):
        raise UserError(f'{place}: expected red, green and blue from 0 to 255 for {name!r}, got '
                        f'{abbreviate(values)}')
    return name.strip(), (channels[0], channels[1], channels[2])


def find_color_table(folder: Path) -> Path | None:
    """Return the table of colors in a folder, or None.

    Raises:
        ValueError: If there are several.
    """
    files = [folder / name for name in FILES if (folder / name).is_file()]
    if len(files) > 1:
        raise UserError(f'several files can be the table of colors: pass one with --color-map: '
                        f'{format_names(files)}')
    return files[0] if files else None
