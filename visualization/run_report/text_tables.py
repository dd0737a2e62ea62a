"""Tables of pages as text."""
from __future__ import annotations

from colonnade.runtime.printing import printable

from ..html_pages import Table
from ..html_pages.page import shown

WIDEST = 40  # letters of a column
MOST_ROWS = 40


def text_of(table: Table) -> str:
    """The first rows of a table in columns, numbers to the right."""
    rows = [table.header, *([shown(cell) for cell in row] for row in table.rows[:MOST_ROWS])]
    cells = [[cut(key, front=True), *map(cut, row)] for key, *row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        parts = [
            text.rjust(width) if table.is_number(column) else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append('  '.join(parts).rstrip())
    if len(table.rows) > MOST_ROWS:
        lines.append(f'and {len(table.rows) - MOST_ROWS} more')
    return '\n'.join(filter(None, (table.caption, *lines)))


def cut(text: str, *, front: bool = False) -> str:
    """A text on one line and of bounded length; the front of keys is what they share."""
    text = printable(' '.join(text.split()))
    if len(text) <= WIDEST:
        return text
    return f'…{text[1 - WIDEST:]}' if front else f'{text[:WIDEST - 1]}…'
