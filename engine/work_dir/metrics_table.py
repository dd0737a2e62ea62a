"""A table of numbers that grows by rows and columns, and is whole at any moment."""
from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import UserError

Value = int | float
#: columns of every table; others follow in the order in which they appear
COLUMNS = ('iter', 'epoch', 'time')
SKIPPED = 'skipped_steps'  # of the optimizer, since training was started; if there are any


class MetricsTable:
    """A file of comma-separated values with a row per logged step and per evaluation.

    A row of known columns is appended in one write. A new column replaces the whole file.

    Args:
        path: Read if it exists.

    Raises:
        ValueError: If it is another table.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            rows = self.rows()
            known = not path.is_dir() and all(row['iter'].isdecimal() for row in rows)
        except (KeyError, UnicodeDecodeError, csv.Error):
            known = False
        if not known:
            raise UserError(f'{path} is no table of a training: move it elsewhere')
        self.columns = list(rows[0]) if rows else list(COLUMNS)
        self.is_whole = True  # and has these columns; not after a row that could not be written

    def rows(self) -> list[dict[str, str]]:
        """All rows as texts; empty where a row has no value.

        A last line that a crash of the machine cut off is left out.
        """
        if not self.path.is_file():
            return []
        text = self.path.read_text(encoding='utf-8')
        return list(csv.DictReader(io.StringIO(text[:text.rfind('\n') + 1])))

    def append(self, row: Mapping[str, Value]) -> None:
        """Add a row.

        Raises:
            OSError: If it cannot be written.
        """
        new = [key for key in row if key not in self.columns]
        texts = {key: text_of(value) for key, value in row.items()}
        replaces = new or not self.is_whole or not self.path.is_file()
        self.columns += new
        self.is_whole = False
        if replaces:
            self._replace([*self.rows(), texts])
        else:
            with open(os.open(self.path, os.O_WRONLY | os.O_APPEND), 'wb') as file:
                file.write(self._lines([texts]).encode())
        self.is_whole = True

    def keep_until(self, iteration: int) -> int:
        """Drop the rows behind an iteration; returns their number."""
        rows = self.rows()
        kept = [row for row in rows if int(row['iter']) <= iteration]
        if kept:
            self._replace(kept)
        else:
            self.columns = list(COLUMNS)
            self.path.unlink(missing_ok=True)
        return len(rows) - len(kept)

    def is_evaluated(self, iteration: int) -> bool:
        """Whether there is an evaluation of an iteration: a row without a loss."""
        return any(row['iter'] == str(iteration) and not row.get('loss') for row in self.rows())

    def last(self, column: str) -> float:
        """The last value of a column; 0 if there is none."""
        return next(reversed(self.values(column)), 0.)

    def values(self, column: str) -> list[float]:
        """The values of a column, without rows that have none.

        Raises:
            ValueError: If one is no number.
        """
        texts = [row[column] for row in self.rows() if row.get(column)]
        try:
            return list(map(float, texts))
        except ValueError as error:
            raise UserError(f'{self.path} is no table of a training, its column {column}: '
                            f'{error}: move it elsewhere') from error

    def _replace(self, rows: Iterable[Mapping[str, str]]) -> None:
        head = {column: column for column in self.columns}
        write_text(self.path, self._lines([head, *rows]))

    def _lines(self, rows: Iterable[Mapping[str, str]]) -> str:
        lines = io.StringIO()
        writer = csv.DictWriter(lines, self.columns, restval='', lineterminator='\n')
        writer.writerows(rows)
        return lines.getvalue()


def text_of(value: Value) -> str:
    """A number as spreadsheets read it, a float with six significant digits."""
    return str(value) if isinstance(value, int) else f'{value:.6g}'
