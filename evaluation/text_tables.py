"""Tables as text: lines of columns for a terminal, and Markdown."""
from __future__ import annotations

from collections.abc import Collection, Sequence

Rows = Sequence[Sequence[str]]


def align_cells(rows: Rows, numbers: Collection[int]) -> list[tuple[str, ...]]:
    """Return the cells of rows, padded to the width of their columns.

    Args:
        rows: Header and rows, each with a cell for every column.
        numbers: Indices of the columns that are aligned to the right.
    """
    columns = []
    for index, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        pad = str.rjust if index in numbers else str.ljust
        columns.append([pad(cell, width) for cell in column])
    return list(zip(*columns, strict=True))


def format_columns(rows: Rows, numbers: Collection[int]) -> list[str]:
    """Return a line for each row; see :func:`align_cells`."""
    return ['  '.join(row).rstrip() for row in align_cells(rows, numbers)]


def format_markdown(rows: Rows, numbers: Collection[int]) -> list[str]:
    """Return the lines of a Markdown table that is also readable in a terminal."""
    header, *others = align_cells(rows, numbers)
    rule = tuple('-' * (len(cell) - 1) + (':' if index in numbers else '-')
                 for index, cell in enumerate(header))  # yapf: disable
    return [f'| {" | ".join(row)} |' for row in (header, rule, *others)]
