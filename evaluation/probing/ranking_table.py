"""Ranking as text: Markdown, which is also readable in a terminal, and CSV."""
from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from colonnade.evaluation.text_tables import format_markdown

from .ranking import RankingRow

COLUMNS = ('backbone', 'mIoU, linear', 'mIoU, k-NN', 'parameters, M', 'multiply-adds, G',
           'ms per image', 'features, KiB')
CSV_COLUMNS = ('backbone', 'linear_miou', 'knn_miou', 'parameters', 'multiply_adds', 'seconds',
               'feature_bytes')


def format_ranking(rows: Sequence[RankingRow]) -> str:
    """Return a Markdown table."""
    cells = [(row.backbone, f'{row.linear_miou:.1f}', f'{row.knn_miou:.1f}',
              f'{row.parameters / 1e6:.1f}', f'{row.multiply_adds / 1e9:.2f}',
              f'{1000 * row.seconds:.1f}', f'{row.feature_bytes / 1024:.0f}')
             for row in rows]  # yapf: disable
    lines = format_markdown([COLUMNS, *cells], range(1, len(COLUMNS)))
    return ''.join(f'{line}\n' for line in lines)


def format_ranking_csv(rows: Sequence[RankingRow]) -> str:
    """Return all numbers of the table at full precision, in units without prefixes."""
    return _format_csv([CSV_COLUMNS, *([vars(row)[name] for name in CSV_COLUMNS] for row in rows)])


def format_class_csv(rows: Sequence[RankingRow], classes: Sequence[str]) -> str:
    """Return the IoU of each class in percent; empty for classes that do not occur."""
    lines: list[Sequence[object]] = [('backbone', 'probe', *classes)]
    for row in rows:
        for probe, values in (('linear', row.linear_ious), ('k-NN', row.knn_ious)):
            cells = ['' if np.isnan(value) else f'{value:.2f}' for value in values]
            lines.append((row.backbone, probe, *cells))
    return _format_csv(lines)


def _format_csv(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows(lines)
    return text.getvalue()
