"""Label maps from pictures in which each class has a colour."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.runtime.bit_depth import has_16_bits

from ..custom.label_maps import IGNORED
from ..validation.image_files import open_image
from ..validation.validation_report import Report
from .color_tables import Color, ColourTable, find_table, read_colours

SAMPLES = 20  # pictures whose colours are listed
MOST_SHOWN = 12  # of these colours
NEAR = 96  # difference of colours, summed over channels, that smooth edges and JPEG make


def table_for(file: Path | None, roots: Iterable[Path], sources: Sequence[Path],
              report: Report) -> ColourTable | None:
    """The table by which masks become label maps; ``None`` if they are label maps.

    Args:
        file: The table that the user names; ``None`` looks for one.
        roots: Where to look.
        sources: The masks, of which the first that can be read tells what they are.
        report: Takes what is assumed.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If masks are in colours and there is no table, or it is wrong.
    """
    found = file or next(filter(None, map(find_table, roots)), None)
    sources = list(dropwhile(_is_unreadable, sources)) or sources
    kind = _find_mode(sources[0])
    if found is None and kind == 'colours':
        raise UserError(_without_table(sources))
    if found is None:
        return None
    try:
        table = read_colours(found)
    except ValueError as error:
        if file or kind == 'colours':
            raise
        report.remark(f'{error}. It is not used: {sources[0]} holds labels')
        return None
    holds_colours = kind == 'palette' or _is_gray(table.all_colours)
    if kind != 'colours' and not (
            holds_colours and (file or set(count_colors(sources[:1])) <= set(table.all_colours))):
        if file:
            raise UserError(f'--colours: {sources[0]} has one channel, which holds labels and no '
                            'colours: give the names of labels with --classes')
        report.remark(f'{found} is not used: {sources[0]} holds labels, and no colours of this '
                      'table. --classes gives names')
        return None
    report.remark(f'{found}: colours of {len(table.classes)} classes')
    if table.unlabelled:
        report.remark(f'{found}: pixels of {", ".join(map(str, table.unlabelled))} are unlabelled, '
                      'as their name says: rename the row to train it as a class')
    return table


def _is_unreadable(mask: Path) -> bool:
    """Return True if a mask is no image, which is reported when all are read."""
    try:
        with open_image(mask):
            return False
    except OSError:
        return True


def _find_mode(mask: Path) -> str:
    """``gray``, ``palette`` or ``colours``."""
    with open_image(mask) as image:
        mode = image.mode
    return 'palette' if mode == 'P' else 'gray' if mode in ('1', 'L') or mode[0] in 'IF' else \
        'colours'


def _is_gray(colours: Iterable[Color]) -> bool:
    return all(red == green == blue for red, green, blue in colours)


def _without_table(sources: Sequence[Path]) -> str:
    counts = count_colors(sources)
    what = 'has three equal channels' if _is_gray(counts) else 'is a picture in colours'
    rows = [
        f'  class {number},{",".join(map(str, colour))}'
        for number, (colour, _) in enumerate(counts.most_common(MOST_SHOWN), 1)
    ]
    more = f'\n  ... and {len(counts) - len(rows)} more' if len(counts) > len(rows) else ''
    return (f'{sources[0]} {what}, and label maps hold numbers: --colours names a table, in which '
            'each class has a colour. These are the colours in the first masks, the most frequent '
            'first. Write a table of them, with names:\n'
            '  name,r,g,b\n' + '\n'.join(rows) + more)


@dataclass(frozen=True)
class ColourReader:
    """Reads pictures in the colours of a table as label maps."""
    table: ColourTable

    def __call__(self, source: Path, size: tuple[int, int]) -> np.ndarray:
        """The label map ``(H, W)``, uint8, of a picture.

        Args:
            source: The picture.
            size: Of the image, width and height; not used here.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it has a colour that is not in the table.
        """
        numbers = read_packed_colors(source)
        known = np.array(list(map(_pack_color, self.table.all_colours)))
        labels = np.full(len(known), IGNORED, np.uint8)
        labels[:len(self.table.colours)] = range(len(self.table.colours))
        order = np.argsort(known)
        places = np.searchsorted(known[order], numbers).clip(max=len(known) - 1)
        wrong = known[order][places] != numbers
        if wrong.any():
            raise UserError(self._unknown(numbers[wrong]))
        return labels[order][places]

    def _unknown(self, numbers: np.ndarray) -> str:
        """A sentence on colours that are not in the table."""
        counts = _count_colors(numbers)
        texts, near = [], 0
        for colour, count in counts.most_common(5):
            name, distance = self._nearest(colour)
            near += distance <= NEAR
            hint = f' (near {name!r})' if distance <= NEAR else ''
            texts.append(f'{colour} of {count} pixels{hint}')
        more = f' and {len(counts) - 5} more' if len(counts) > 5 else ''
        why = '. Colours near others come from smooth edges or from JPEG: export masks without ' \
            'these' if near else ''
        return f'colours that are not in the table: {"; ".join(texts)}{more}{why}'

    def _nearest(self, colour: Color) -> tuple[str, int]:
        """The class of the nearest colour, and the difference, summed over channels."""
        names = (*self.table.classes, *['unlabelled'] * len(self.table.unlabelled))
        distances = np.abs(np.array(self.table.all_colours) - np.array(colour)).sum(axis=1)
        nearest = int(distances.argmin())
        return names[nearest], int(distances[nearest])


def read_packed_colors(source: Path) -> np.ndarray:
    """The colours of a picture, each as one number: ``(H, W)``, int32.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it holds other than colours of 8 bits.
    """
    with open_image(source) as image:
        fault = _fault_of(image)
        pixels = np.asarray(image.convert('RGB')).astype(np.int32)
    if fault:
        raise UserError(fault)
    return (pixels[..., 0] << 16) + (pixels[..., 1] << 8) + pixels[..., 2]


def _fault_of(picture: Image.Image) -> str | None:
    """Why a picture is no mask in colours of 8 bits, if it is none."""
    if picture.format in ('JPEG', 'MPO'):
        return 'it is a JPEG, whose compression changes colours: export PNG'
    if has_16_bits(picture):
        return 'its values are of 16 bits, and tables have colours of 8 bits'
    if picture.mode in ('RGBA', 'LA', 'PA') and picture.getchannel('A').getextrema()[0] != 255:
        return 'it has transparent pixels, whose colours mean nothing: fill them'
    return None


def _pack_color(colour: Color) -> int:
    return (colour[0] << 16) + (colour[1] << 8) + colour[2]


def _count_colors(numbers: np.ndarray) -> Counter[Color]:
    found, counts = np.unique(numbers, return_counts=True)
    return Counter({
        (int(number) >> 16, int(number) >> 8 & 255, int(number) & 255): int(count)
        for number, count in zip(found, counts, strict=True)
    })


def count_colors(sources: Sequence[Path]) -> Counter[Color]:
    """The colours in the first pictures, and how many pixels each has.

    Raises:
        OSError: If one cannot be read.
        ValueError: If one has no colours of 8 bits; the message names it.
    """
    counts: Counter[Color] = Counter()
    for source in sources[:SAMPLES]:
        try:
            counts += _count_colors(read_packed_colors(source))
        except ValueError as error:
            raise UserError(f'{source}: {error}') from error
    return counts
