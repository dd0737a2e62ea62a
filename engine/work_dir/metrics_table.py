"""The table metrics.csv, which grows by rows and columns and is complete at any moment."""
from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import UserError

Value = int | float
#: columns of every table; others follow in order of appearance
COLUMNS = ('iter', 'epoch', 'time')
SKIPPED = 'skipped_steps'  # column of the steps that were skipped since the start, if any


class MetricsTable:
    """A CSV file with a row per logged step and per evaluation.

    A row of known columns is appended in one write. A new column replaces the whole file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            rows = self.rows()
            is_valid = not path.is_dir() and all(row['iter'].isdecimal() for row in rows)
        except (KeyError, UnicodeDecodeError, csv.Error):
            is_valid = False
        if not is_valid:
            raise UserError(f'{path} is not the metrics table of a run: move it elsewhere')
        self.columns = list(rows[0]) if rows else list(COLUMNS)
        self.is_whole = True  # False after a row that could not be written

    def rows(self) -> list[dict[str, str]]:
        """Return all rows, without a last line that was cut off; missing values are empty."""
        if not self.path.is_file():
            return []
        text = self.path.read_text(encoding='utf-8')
        return list(csv.DictReader(io.StringIO(text[:text.rfind('\n') + 1])))

    def append(self, row: Mapping[str, Value]) -> None:
        """Append a row; floats have six significant digits."""
        new = [key for key in row if key not in self.columns]
        texts = {key: str(value) if isinstance(value, int) else f'{value:.6g}'
                 for key, value in row.items()}  # yapf: disable
        replaces = new or not self.is_whole or not self.path.is_file()
        self.columns += new
        self.is_whole = False
        if replaces:
            self._replace([*self.rows(), texts])
        else:
            with open(os.open(self.path, os.O_WRONLY | os.O_APPEND), 'wb') as file:
                file.write(self._format([texts]).encode())
        self.is_whole = True

    def keep_until(self, iteration: int) -> int:
        """Remove the rows after an iteration, and return their number."""
        rows = self.rows()
        kept = [row for row in rows if int(row['iter']) <= iteration]
        if kept:
            self._replace(kept)
        else:
            self.columns = list(COLUMNS)
            self.path.unlink(missing_ok=True)
        return len(rows) - len(kept)

    def is_evaluated(self, iteration: int) -> bool:
        """Return True if there is an evaluation of an iteration: a row without a loss."""
        return any(row['iter'] == str(iteration) and not row.get('loss') for row in self.rows())

    def last(self, column: str) -> float:
        """Return the last value of a column, or 0."""
        return next(reversed(self.values(column)), 0.)

    def values(self, column: str) -> list[float]:
        """Return the values of a column, without missing ones."""
        texts = [row[column] for row in self.rows() if row.get(column)]
        try:
            return list(map(float, texts))
        except ValueError as error:
            raise UserError(f'column {column} of {self.path} has a value that is not a number '
                            f'({error}): move the file elsewhere') from error

    def _replace(self, rows: Iterable[Mapping[str, str]]) -> None:
        header = {column: column for column in self.columns}
        write_text(self.path, self._format([header, *rows]))

    def _format(self, rows: Iterable[Mapping[str, str]]) -> str:
        lines = io.StringIO()
        writer = csv.DictWriter(lines, self.columns, restval='', lineterminator='\n')
        writer.writerows(rows)
        return lines.getvalue()
