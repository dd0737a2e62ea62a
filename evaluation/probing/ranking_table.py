"""The comparison as text: for a terminal, Markdown and CSV."""
from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from colonnade.evaluation.text_tables import format_markdown

from .ranking import Row

COLUMNS = ('backbone', 'mIoU, linear', 'mIoU, k-NN', 'parameters, M', 'multiply-adds, G',
           'ms per image', 'features, KiB')


def cells_of(row: Row) -> tuple[str, ...]:
    """A row in the order of :data:`COLUMNS`."""
    return (row.backbone, f'{row.linear_miou:.1f}', f'{row.knn_miou:.1f}',
            f'{row.parameters / 1e6:.1f}', f'{row.multiply_adds / 1e9:.2f}',
            f'{1000 * row.seconds:.1f}', f'{row.feature_bytes / 1024:.0f}')


def markdown(rows: Sequence[Row]) -> str:
    """A table whose columns also line up in a terminal."""
    lines = format_markdown([COLUMNS, *map(cells_of, rows)], range(1, len(COLUMNS)))
    return ''.join(f'{line}\n' for line in lines)


def summary_csv(rows: Sequence[Row]) -> str:
    """All numbers of the table in full, in units without prefixes."""
    names = ('backbone', 'linear_miou', 'knn_miou', 'parameters', 'multiply_adds', 'seconds',
             'feature_bytes')
    return _csv([names, *([getattr(row, name) for name in names] for row in rows)])


def classes_csv(rows: Sequence[Row], classes: Sequence[str]) -> str:
    """IoU of each class in percent; empty where a class is in no label map and no prediction."""
    lines: list[Sequence[object]] = [('backbone', 'probe', *classes)]
    for row in rows:
        for probe, values in (('linear', row.linear_ious), ('k-NN', row.knn_ious)):
            cells = ['' if np.isnan(value) else f'{value:.2f}' for value in values]
            lines.append((row.backbone, probe, *cells))
    return _csv(lines)


def _csv(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows(lines)
    return text.getvalue()
