"""Tables of a comparison of runs, as text for a terminal."""
from __future__ import annotations

from colonnade.common.text_tables import format_columns
from colonnade.runtime.printing import printable

from ..html_pages import Table
from ..html_pages.page import shown

WIDEST = 40  # letters of a column
MOST_ROWS = 40


def text_of(table: Table) -> str:
    """The first rows of a table in columns, numbers to the right."""
    rows = [table.header, *([shown(cell) for cell in row] for row in table.rows[:MOST_ROWS])]
    cells = [[cut(key, front=True), *map(cut, row)] for key, *row in rows]
    numbers = [index for index in range(len(table.header)) if table.is_number(index)]
    lines = format_columns(cells, numbers)
    if len(table.rows) > MOST_ROWS:
        lines.append(f'and {len(table.rows) - MOST_ROWS} more')
    return '\n'.join(filter(None, (table.caption, *lines)))


def cut(text: str, *, front: bool = False) -> str:
    """A text on one line and of bounded length; the front of keys is what they share."""
    text = printable(' '.join(text.split()))
    if len(text) <= WIDEST:
        return text
    return f'…{text[1 - WIDEST:]}' if front else f'{text[:WIDEST - 1]}…'
