"""The parts of a page about classes: tables, curves, confusion."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..html_pages import Section, Table
from . import run_plots
from .detections import IOU, SCORE

BACKGROUND = 'background'
MOST_ROWS = 40  # of a table that is seen at once
MOST_PAIRS = 15  # of classes that were confused
COLUMNS = {  # of the table of classes, by their keys
    'objects': 'objects', 'pixels': 'pixels',
    'bbox_ap': 'box AP', 'bbox_ap50': 'box AP50', 'segm_ap': 'mask AP', 'segm_ap50': 'mask AP50',
    'precision': 'precision', 'recall': 'recall', 'iou': 'IoU', 'acc': 'Acc',
}  # yapf: disable
MAIN = ('segm_ap', 'bbox_ap', 'iou', 'recall')  # by which classes are sorted
ABOUT = {
    'detector': f'AP is the mean over IoU 0.5 to 0.95, as COCO defines it. Precision and recall '
                f'count detections of a score of at least {SCORE}, paired with objects from a box '
                f'IoU of {IOU} on. All are from 0 to 1.',
    'segmenter': 'IoU: pixels where truth and prediction agree, as a share of those of either. '
                 'Acc: as a share of those of the truth. Both are from 0 to 1.',
}  # yapf: disable


def main_key(values: dict[str, list]) -> str:
    """The measure that classes are sorted by."""
    return next(key for key in MAIN if key in values)


def class_sections(evaluation: dict[str, Any], classes: Sequence[str]) -> list[Section]:
    """What one evaluation says of classes; empty if it says nothing."""
    values = evaluation.get('classes')
    if not values or not classes:
        return []
    detector = 'objects' in values
    found = class_tables(values, classes, ABOUT['detector' if detector else 'segmenter'])
    curves = [(f'{"boxes" if kind == "bbox" else "masks"}; behind each class its AP50',
               run_plots.precision_recall(lines, classes))
              for kind, lines in evaluation.get('curves', {}).items() if lines]
    if curves:
        found.append(
            Section(
                'Precision and recall',
                text='At IoU 0.5, of the classes that are easiest and hardest for the model.',
                plots=curves))
    return [*found, *confusion_section(evaluation, classes, detector)]


def class_tables(values: dict[str, list], classes: Sequence[str], about: str) -> list[Section]:
    """A table of all classes, the worst first; with plots of the extremes if there are many."""
    key = main_key(values)
    measured = [each for each in range(len(classes)) if values[key][each] is not None]
    absent = [each for each in range(len(classes)) if values[key][each] is None]
    order = sorted(measured, key=lambda each: values[key][each])
    columns = [each for each in COLUMNS if each in values]
    rows = [[classes[k], *(values[column][k] for column in columns)] for k in order + absent]
    table = Table(['class', *(COLUMNS[each] for each in columns)], rows)
    if len(absent):
        about += f' {len(absent)} classes have no {columns[0]} and stand last.'
    if len(rows) <= MOST_ROWS:
        return [Section('Classes', text=f'The worst first. {about}', tables=[table])]
    charts = [(f'the {len(part)} {which} of {len(measured)} classes',
               run_plots.bars([classes[k] for k in part], [values[key][k]
                                                           for k in part], COLUMNS[key]))
              for which, part in (('worst', order[:run_plots.BARS]),
                                  ('best', order[::-1][:run_plots.BARS]))]
    return [
        Section('Classes', text=about, plots=charts if order else ()),
        Section(f'All {len(rows)} classes, the worst first', tables=[table], folded=True)
    ]


def confusion_section(evaluation: dict[str, Any], classes: Sequence[str],
                      detector: bool) -> list[Section]:
    """Which classes were taken for which."""
    names = [*classes, BACKGROUND if detector else 'no class']
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    for truth, found, count in evaluation.get('confusion', ()):
        table[truth, found] = count
    if not table.any():
        return []
    unit = 'objects' if detector else 'pixels'
    chosen = most_confused(table)
    rows = [*chosen, len(classes)] if detector else chosen
    totals = table.sum(axis=1, keepdims=True)
    shares = np.divide(table, totals, out=np.full(table.shape, np.nan), where=totals > 0)
    labels = [names[k] for k in rows]
    left_out = len(classes) - len(chosen)
    caption = f'percent of the {unit} of each row'
    if left_out:
        caption += f'; the {left_out} classes that are confused least are left out'
    text = 'Rows are the truth, columns the prediction. '
    if detector:
        text += (f'Detections of a score of at least {SCORE} are paired with objects from a box '
                 f'IoU of {IOU} on, whatever their classes, the most certain first. What was '
                 f'missed stands in the column {BACKGROUND!r}, what is not there in its row.')
    pairs = confused_pairs(table, shares, names, detector)
    listed = Table(['truth', 'taken for', unit, 'share of the truth'], pairs)
    return [
        Section(
            'Confusion',
            text=text,
            plots=[(caption, run_plots.confusion(shares[np.ix_(rows, rows)], labels, labels))],
            tables=[listed] if pairs else ())
    ]


def most_confused(table: np.ndarray) -> list[int]:
    """The classes with most errors of either kind, as many as a picture holds, in their order.

    Args:
        table: Counts, ``(K + 1, K + 1)``; the last class is the background.
    """
    errors = table.sum(axis=0) + table.sum(axis=1) - 2 * np.diag(table)
    order = np.argsort(-errors[:-1], kind='stable')[:run_plots.CELLS]
    return sorted(order.tolist())


def confused_pairs(table: np.ndarray, shares: np.ndarray, names: Sequence[str],
                   detector: bool) -> list[list]:
    """The pairs of classes with most errors: names, number, share of the first."""
    wrong = table.copy()
    np.fill_diagonal(wrong, 0)
    if not detector:
        wrong[-1] = 0
    order = np.argsort(-wrong, axis=None, kind='stable')[:MOST_PAIRS]
    cells = [np.unravel_index(place, wrong.shape) for place in order]
    return [[names[t], names[p], int(wrong[t, p]),
             '–' if detector and t == len(names) - 1 else f'{shares[t, p]:.1%}']
            for t, p in cells if wrong[t, p]]  # yapf: disable
