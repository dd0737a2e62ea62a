"""Tables that give classes their colours, as programs for annotation export them."""
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
         'palette.json', 'palette.txt')  # names that exporters give them
UNLABELLED = ('void', 'unlabelled', 'unlabeled', 'ignore', 'ignored')
NAMES, CHANNELS = ('name', 'class', 'label', 'title'), (('r', 'red'), ('g', 'green'), ('b', 'blue'))
MOST_CLASSES = IGNORED
Color = tuple[int, int, int]


@dataclass(frozen=True)
class ColourTable:
    """Classes and colours, in the order of labels.

    Attributes:
        classes: Names.
        colours: RGB of each.
        unlabelled: Colours of pixels to be ignored.
        file: Where they were read.
    """
    classes: tuple[str, ...]
    colours: tuple[Color, ...]
    unlabelled: tuple[Color, ...] = ()
    file: Path | None = None

    @property
    def all_colours(self) -> tuple[Color, ...]:
        return (*self.colours, *self.unlabelled)


def read_colours(file: Path) -> ColourTable:
    """The table in a file: CSV, text or JSON, as programs for annotation export them.

    A row named ``void``, ``unlabelled`` or ``ignore`` stands for pixels to be ignored.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no table of colours, or a name or colour stands there twice.
    """
    try:
        text = file.read_text(encoding='utf-8-sig')
        rows = list(
            _json_rows(json.loads(text)) if file.suffix.lower() == '.json' else text_rows(text))
    except (ValueError, RecursionError, csv.Error) as error:
        raise UserError(f'{file}: {error}') from error
    if not rows:
        raise UserError(f'{file}: there is no row in it. Wanted: lines of name,r,g,b')
    for what, values in (('name', [name for name, _ in rows]), ('colour', [c for _, c in rows])):
        if twice := find_repeated(values):
            raise UserError(f'{file}: a {what} stands there more than once: '
                            f'{format_names(list(map(str, twice)))}')
    named = [(name, colour) for name, colour in rows if name.lower() not in UNLABELLED]
    if len(named) > MOST_CLASSES:
        raise UserError(f'{file}: there are {len(named)} classes, label maps have room for '
                        f'{MOST_CLASSES}')
    return ColourTable(
        tuple(name for name, _ in named), tuple(colour for _, colour in named),
        tuple(colour for name, colour in rows if name.lower() in UNLABELLED), file)


def text_rows(text: str) -> Iterator[tuple[str, Color]]:
    """Rows of CSV (with or without a heading), of ``r g b name`` and of ``name:r,g,b::``.

    Raises:
        ValueError: If a line is none; the message numbers it.
    """
    order = mark = None
    for number, line in enumerate(text.split('\n'), 1):
        line = line.strip()
        if not line or line.startswith('#'):
            continue
        cells = _cells(line, mark)
        if order is None and (order := _heading(cells)):
            mark = _mark(line)
            continue
        if order is None and len(cells) == 4 and all(map(str.isdigit, cells)):
            raise UserError(f'line {number}: which of these is the name? Write a heading '
                            f'name,r,g,b above {abbreviate(line)}')
        places = order or ((3, 0, 1, 2) if all(map(str.isdigit, cells[:3])) else (0, 1, 2, 3))
        if len(cells) <= max(places):
            raise UserError(f'line {number}: wanted name,r,g,b, got {abbreviate(line)}')
        name, *values = (cells[place] for place in places)
        yield _row(name, values, f'line {number}')


def _mark(line: str) -> str | None:
    """What separates the cells of a line; ``None`` is blanks."""
    return next((mark for mark in ';,\t' if mark in line), None)


def _cells(line: str, mark: str | None) -> list[str]:
    """The cells of a line, by the heading's mark or what looks like one."""
    if mark is None:
        if found := re.fullmatch(r'(.+?):\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*(:.*)?', line):
            return list(found.groups()[:4])  # of labelmap.txt, with parts and actions behind
        if found := re.fullmatch(r'(\d+)\s+(\d+)\s+(\d+)\s+(.+)', line):
            return list(found.groups())
        mark = _mark(line)
    if mark is None:
        return line.split()
    return [cell.strip() for cell in next(csv.reader([line], delimiter=mark))]


def _heading(cells: list[str]) -> tuple[int, ...] | None:
    """Where name, red, green and blue stand, if the cells are a heading."""
    lower = [cell.lower() for cell in cells]
    places = [
        next((lower.index(word) for word in words if word in lower), None)
        for words in (NAMES, *CHANNELS)
    ]
    return None if None in places else tuple(place for place in places if place is not None)


def _json_rows(content: Any) -> Iterator[tuple[str, Color]]:
    """Rows of ``{name: [r, g, b]}`` or of ``[{"name": ..., "color": ...}]``, perhaps one deeper."""
    if isinstance(content, dict) and isinstance(content.get('classes'), list):
        content = content['classes']
    if isinstance(content, dict):
        entries = list(content.items())
    elif isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        entries = [(next((entry[key] for key in NAMES if key in entry),
                         None), entry.get('color', entry.get('colour'))) for entry in content]
    else:
        raise UserError('wanted {"name": [r, g, b], ...}, or a list of {"name": ..., "color": '
                        f'[r, g, b]}}, got {abbreviate(content)}')
    for number, (name, colour) in enumerate(entries, 1):
        found = isinstance(colour, str) and re.fullmatch('#?([0-9a-fA-F]{6})', colour.strip())
        values = list(bytes.fromhex(found[1])) if found else colour
        yield _row(name, values, f'entry {number}')


def _row(name: Any, values: Any, where: str) -> tuple[str, Color]:
    """A row whose values are checked."""
    if not isinstance(name, str) or not name.strip():
        raise UserError(f'{where}: wanted the name of a class, got {abbreviate(name)}')
    try:
        whole = [int(value) for value in values]
    except (TypeError, ValueError):
        whole = []
    if len(whole) != 3 or not all(0 <= value <= 255 for value in whole):
        raise UserError(f'{where}: wanted red, green and blue from 0 to 255 for {name!r}, got '
                        f'{abbreviate(values)}')
    return name.strip(), (whole[0], whole[1], whole[2])


def find_table(folder: Path) -> Path | None:
    """The file in a data set's folder that is a table of colours.

    Raises:
        ValueError: If there are several, or what is named like one is none.
    """
    found = [folder / name for name in FILES if (folder / name).is_file()]
    if len(found) > 1:
        raise UserError(f'{format_names(list(map(str, found)))} may be the table of colours: say '
                        '--colours')
    return found[0] if found else None
