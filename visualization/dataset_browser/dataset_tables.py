"""Tables of a data set's numbers."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..html_pages import Table
from ..html_pages.page import Cell
from .dataset_reader import ImageSet
from .statistics import LabelNumbers, Numbers, ObjectNumbers, by_size


def overview(sets: Sequence[ImageSet], numbers: Sequence[Numbers]) -> Table:
    """What each split has in all."""
    columns = [[*about(data, found)] for data, found in zip(sets, numbers, strict=True)]
    names = list(dict.fromkeys(name for column in columns for name, _ in column))
    found = [dict(column) for column in columns]
    rows = [[name, *(column.get(name, '0') for column in found)] for name in names]
    return Table(['', *(data.name for data in sets)], rows)


def about(data: ImageSet, found: Numbers) -> list[tuple[str, str]]:
    """Names and values of a split's column."""
    rows = [('images', f'{len(data):,}')]
    if isinstance(found, ObjectNumbers):
        rows += about_objects(found)
    elif isinstance(found, LabelNumbers):
        rows += [('label maps counted', f'{found.num_maps:,}'), ('pixels', f'{found.total:,}'),
                 ('share unlabelled', percent(found.total - int(found.amounts.sum()), found.total))]
    missing = int((found.amounts == 0).sum())
    rows += [('classes', f'{len(data.classes)}'), ('classes that do not occur', f'{missing}')]
    if len(found.sizes):
        area = found.sizes.prod(axis=1)
        least, most = found.sizes[area.argmin()], found.sizes[area.argmax()]
        rows += [('smallest image', f'{least[0]} x {least[1]}'),
                 ('largest image', f'{most[0]} x {most[1]}')]
    return rows + [(reason, f'{number:,}') for reason, number in data.left_out.items()]


def about_objects(found: ObjectNumbers) -> list[tuple[str, str]]:
    """The rows that sets of objects alone have."""
    total, per_image = len(found.areas), found.per_image
    rows = [('objects', f'{total:,}'), ('crowds, and objects to be ignored', f'{found.crowds:,}'),
            ('images without objects', f'{int((per_image == 0).sum()):,}')]
    if len(per_image):
        rows += [('objects of an image, mean', f'{per_image.mean():.1f}'),
                 ('objects of an image, most', f'{per_image.max()}')]
    names = ('small objects, below 32² pixels', 'medium objects', 'large objects, from 96² pixels')
    sizes = zip(names, by_size(found.areas), strict=True)
    return rows + [(name, f'{number:,} ({percent(number, total)})') for name, number in sizes]


def percent(part: int, whole: int) -> str:
    """A share as text."""
    return f'{part / whole:.1%}' if whole else '–'


def classes(numbers: Sequence[Numbers], amount: str) -> Table:
    """Every class, the most frequent first.

    Args:
        numbers: Of each split, whose classes are the same.
        amount: What is counted: ``'objects'`` or ``'pixels'``.
    """
    header = ['class']
    for found in numbers:
        header += [f'{found.name}: {amount}', '%', 'images']
    rows = []
    for index in np.argsort(-numbers[0].amounts, kind='stable').tolist():
        row: list[Cell] = [numbers[0].classes[index]]
        for found in numbers:
            number = int(found.amounts[index])
            share = 100 * number / max(int(found.amounts.sum()), 1)
            row += [number, round(share, 2), int(found.images[index])]
        missing = [found.name for found in numbers if not found.amounts[index]]
        rows.append([*row, f'none in {" and ".join(missing)}' if missing else ''])
    return Table([*header, ''], rows, 'All classes, the most frequent first.')
