"""Color-coded masks, which become label maps by tables that annotation programs export."""
from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.runtime.bit_depth import has_16_bits

from ..options import DataOptions
from ..validation.image_files import open_image
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report, abbreviate, find_repeated

NUM_SAMPLES = 20  # masks whose colors are listed
MAX_SHOWN = 12  # colors in a message
NEAR = 96  # difference, summed over channels, that anti-aliasing and JPEG make
FILES = ('class_dict.csv', 'class_dict_seg.csv', 'labelmap.txt', 'label_colors.txt', 'colors.txt',
         'colours.txt', 'colors.csv', 'colours.csv', 'colors.json', 'colours.json', 'palette.csv',
         'palette.json', 'palette.txt')  # names that exporters use
UNLABELED = ('void', 'unlabelled', 'unlabeled', 'ignore', 'ignored')
NAMES, CHANNELS = ('name', 'class', 'label', 'title'), (('r', 'red'), ('g', 'green'), ('b', 'blue'))
Color = tuple[int, int, int]


@dataclass(frozen=True)
class ColorTable:
    """Classes and colors."""
    classes: tuple[str, ...]  # names of the classes, in the order of labels
    colors: tuple[Color, ...]  # RGB color of each class
    unlabeled: tuple[Color, ...]  # colors of pixels to ignore
    file: Path

    @property
    def all_colors(self) -> tuple[Color, ...]:
        """Colors of classes and of unlabeled pixels."""
        return (*self.colors, *self.unlabeled)


def read_color_table(file: Path) -> ColorTable:
    """Return the table in a CSV, text or JSON file.

    Rows named ``void``, ``unlabeled`` or ``ignore`` are for pixels to ignore.
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
        raise UserError(
            f'{file}: label maps can have at most {IGNORED} classes, got {len(labeled)}')
    unlabeled = tuple(color for name, color in rows if name.lower() in UNLABELED)
    return ColorTable(
        tuple(name for name, _ in labeled), tuple(color for _, color in labeled), unlabeled, file)


def parse_text(text: str) -> Iterator[tuple[str, Color]]:
    """Yield the rows of CSV with or without a header, of ``r g b name`` or of ``name:r,g,b::``."""
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
        raise UserError(f'{place}: expected a class name, got {abbreviate(name)}')
    try:
        channels = [int(value) for value in values]
    except (TypeError, ValueError):
        channels = []
    if len(channels) != 3 or not all(0 <= value <= 255 for value in channels):
        raise UserError(f'{place}: expected red, green and blue values from 0 to 255 for {name!r}, '
                        f'got {abbreviate(values)}')
    return name.strip(), (channels[0], channels[1], channels[2])


def find_color_table(folder: Path) -> Path | None:
    """Return the table of colors in a folder, or None."""
    files = [folder / name for name in FILES if (folder / name).is_file()]
    if len(files) > 1:
        raise UserError(f'several files could be the color table ({format_names(files)}): '
                        'pass one with --color-map')
    return files[0] if files else None


def describe_colors(table: ColorTable) -> dict[str, Any]:
    """Return the fields of a :class:`LabelSet` whose masks have the colors of a table."""
    return dict(
        read=ColorReader(table),
        classes=table.classes,
        palette=list(table.colors),
        label_zero='class',
        ignore_255=True,
        meaning=[table.classes, table.colors, table.unlabeled],
        tables=[table.file])


def choose_color_table(args: DataOptions, roots: Iterable[Path], sources: Sequence[Path],
                       report: Report) -> ColorTable | None:
    """Return the table that converts masks to label maps, or None if they are label maps.

    Args:
        roots: Folders that are searched without ``--color-map``.
        sources: Paths of the masks; the first readable one determines their type.
    """
    if not sources:
        return None
    file = args.color_map
    path = file or next(filter(None, map(find_color_table, roots)), None)
    sources = list(dropwhile(_is_unreadable, sources)) or sources
    with open_image(sources[0]) as image:
        mode = image.mode
    has_colors = mode not in ('P', '1', 'L') and mode[0] not in 'IF'
    if path is None:
        if has_colors:
            raise UserError(_explain_missing_table(sources))
        return None
    try:
        table = read_color_table(path)
    except ValueError as error:
        if file or has_colors:
            raise
        report.add_warning(f'{error}. The table is not used, because {sources[0]} contains labels')
        return None
    # Masks with one channel can hold colors, too: of a palette, or gray ones.
    if not has_colors and not ((mode == 'P' or _are_gray(table.all_colors)) and
                               (file or set(_count_colors(sources[:1])) <= set(table.all_colors))):
        if file:
            raise UserError(f'--color-map: {sources[0]} has one channel with labels, not colors: '
                            'pass class names with --classes')
        report.add_warning(f'{path} is not used, because {sources[0]} contains labels, not colors '
                           'of this table: pass class names with --classes')
        return None
    for option, value in (('classes', args.classes), ('label-zero', args.label_zero)):
        if value is not None:
            raise UserError(f'--{option} has no effect: the color table {path} determines it')
    report.add_result(f'{path}: colors of {len(table.classes)} classes')
    if table.unlabeled:
        report.add_warning(f'{path}: pixels of {", ".join(map(str, table.unlabeled))} are ignored; '
                           'to use one of these colors as a class, rename its row')
    return table


def _is_unreadable(mask: Path) -> bool:
    """Return True if a mask is not an image, which is reported when all are read."""
    try:
        with open_image(mask):
            return False
    except OSError:
        return True


def _are_gray(colors: Iterable[Color]) -> bool:
    return all(red == green == blue for red, green, blue in colors)


def _explain_missing_table(sources: Sequence[Path]) -> str:
    counts = _count_colors(sources)
    actual = 'has three equal channels' if _are_gray(counts) else 'is color-coded'
    rows = [
        f'  class {number},{",".join(map(str, color))}'
        for number, (color, _) in enumerate(counts.most_common(MAX_SHOWN), 1)
    ]
    more = f'\n  ... and {len(counts) - len(rows)} more' if len(counts) > len(rows) else ''
    return (f'{sources[0]} {actual}, but label maps contain numbers: pass a table with the color '
            f'of '
            'each class with --color-map. The first masks have these colors, the most frequent '
            'first. Write a table of them, with names:\n'
            '  name,r,g,b\n' + '\n'.join(rows) + more)


@dataclass(frozen=True)
class ColorReader:
    """Reader of color-coded masks as label maps."""
    table: ColorTable

    def __call__(self, source: Path, size: tuple[int, int]) -> np.ndarray:
        """Return the label map ``(H, W)``, uint8, of a mask; ``size`` is not used.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it has a color that is not in the table.
        """
        codes = _read_color_codes(source)
        table = [(red << 16) + (green << 8) + blue for red, green, blue in self.table.all_colors]
        known = np.array(table)
        labels = np.full(len(known), IGNORED, np.uint8)
        labels[:len(self.table.colors)] = range(len(self.table.colors))
        order = np.argsort(known)
        indices = np.searchsorted(known[order], codes).clip(max=len(known) - 1)
        is_unknown = known[order][indices] != codes
        if is_unknown.any():
            raise UserError(self._describe_unknown(_count_codes(codes[is_unknown])))
        return labels[order][indices]

    def _describe_unknown(self, counts: Counter[Color]) -> str:
        names = (*self.table.classes, *['unlabeled'] * len(self.table.unlabeled))
        texts, is_any_near = [], False
        for color, count in counts.most_common(5):
            distances = np.abs(np.array(self.table.all_colors) - np.array(color)).sum(axis=1)
            nearest = int(distances.argmin())
            is_near = bool(distances[nearest] <= NEAR)
            is_any_near |= is_near
            texts.append(f'{color} of {count} pixels' + f' (near {names[nearest]!r})' * is_near)
        more = f' and {len(counts) - 5} more' if len(counts) > 5 else ''
        advice = '. Similar colors come from anti-aliasing or JPEG: export masks without these' \
            if is_any_near else ''
        return f'colors are not in the table: {"; ".join(texts)}{more}{advice}'


def _read_color_codes(source: Path) -> np.ndarray:
    """Return the colors of an image as ``(H, W)`` numbers 0xRRGGBB, int32."""
    with open_image(source) as image:
        error = _find_color_error(image)
        pixels = np.asarray(image.convert('RGB')).astype(np.int32)
    if error:
        raise UserError(error)
    return (pixels[..., 0] << 16) + (pixels[..., 1] << 8) + pixels[..., 2]


def _find_color_error(image: Image.Image) -> str | None:
    if image.format in ('JPEG', 'MPO'):
        return 'it is a JPEG, whose compression changes colors: export PNG'
    if has_16_bits(image):
        return 'it has 16-bit values, but tables have 8-bit colors'
    if image.mode in ('RGBA', 'LA', 'PA') and image.getchannel('A').getextrema()[0] != 255:
        return 'it has transparent pixels, whose colors mean nothing: fill them'
    return None


def _count_codes(codes: np.ndarray) -> Counter[Color]:
    values, counts = np.unique(codes, return_counts=True)
    return Counter({
        (int(code) >> 16, int(code) >> 8 & 255, int(code) & 255): int(count)
        for code, count in zip(values, counts, strict=True)
    })


def _count_colors(sources: Sequence[Path]) -> Counter[Color]:
    """Return the colors in the first masks, and the number of pixels of each."""
    counts: Counter[Color] = Counter()
    for source in sources[:NUM_SAMPLES]:
        try:
            counts += _count_codes(_read_color_codes(source))
        except ValueError as error:
            raise UserError(f'{source}: {error}') from error
    return counts
