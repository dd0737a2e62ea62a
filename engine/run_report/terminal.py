"""Tables of pages as text."""
from __future__ import annotations

from ..reporting import Table
from ..reporting.page import shown

WIDEST = 40  # letters of a column
MOST_ROWS = 40


def text_of(table: Table) -> str:
    """The first rows of a table in columns, numbers to the right."""
    cells = [[cut(name) for name in table.header],
             *([cut(shown(cell)) for cell in row] for row in table.rows[:MOST_ROWS])]
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


def cut(text: str) -> str:
    """A text on one line and of bounded length."""
    text = ' '.join(text.split())
    return text if len(text) <= WIDEST else f'{text[:WIDEST - 1]}…'
