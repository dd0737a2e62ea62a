"""Report sections about classes: metrics, precision-recall curves, confusion."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..html_pages import Section, Table, plots
from .predictions import MIN_IOU, MIN_SCORE
from .record_folder import RecordedRun

BACKGROUND = 'background'
MAX_ROWS = 40  # rows of a table that is not folded
MAX_PAIRS = 15  # pairs of confused classes
MAX_BARS = 15  # classes in a bar plot
MAX_CELLS = 20  # classes in a confusion matrix
COLUMNS = {  # key of class metrics -> column name
    'objects': 'objects', 'pixels': 'pixels', 'segments': 'segments',
    'bbox_ap': 'box AP', 'bbox_ap50': 'box AP50', 'segm_ap': 'mask AP', 'segm_ap50': 'mask AP50',
    'precision': 'precision', 'recall': 'recall', 'iou': 'IoU', 'acc': 'Acc',
    'pq': 'PQ', 'sq': 'SQ', 'rq': 'RQ',
}  # yapf: disable
SORT_KEYS = ('segm_ap', 'bbox_ap', 'iou', 'pq', 'recall')  # the first available one sorts classes
ABOUT_DETECTOR = (
    'AP is the mean over IoU 0.5 to 0.95, as COCO defines it. Precision and recall count '
    f'detections with a score of at least {MIN_SCORE}, matched with objects at a box IoU of at '
    f'least {MIN_IOU}. All are from 0 to 1.')
ABOUT_SEGMENTER = (
    'IoU is the intersection of ground truth and prediction over their union, Acc over '
    'the ground truth. Both are from 0 to 1.')
ABOUT_PANOPTIC = (
    'SQ is the mean IoU of the segments that are found (an IoU above 0.5), RQ the F1 of finding '
    'them, and PQ the product of both. All are in percent.')
ABOUT_CONFUSION = (
    f'Detections with a score of at least {MIN_SCORE} are matched with objects of any class at a '
    f'box IoU of at least {MIN_IOU}, by descending score. Missed objects are in the column '
    f'{BACKGROUND!r}, detections without an object in its row.')


def build_class_sections(run: RecordedRun) -> list[Section]:
    """Return class metrics of the best evaluation, if it has any."""
    classes, values = run.about.get('classes', ()), run.details.get('classes')
    if not values or not classes:
        return []
    is_detector = 'objects' in values
    about = ABOUT_DETECTOR if is_detector else ABOUT_SEGMENTER
    sections = list_classes(values, classes, ABOUT_PANOPTIC if 'pq' in values else about)
    curves = [(f'{"Boxes" if kind == "bbox" else "Masks"}; numbers are the AP50 of classes',
               plots.draw_precision_recall(lines, classes))
              for kind, lines in run.details.get('curves', {}).items() if lines]
    if curves:
        text = 'At IoU 0.5, for the classes of highest and lowest AP50.'
        sections.append(Section('Precision and recall', text, curves))
    return [*sections, *build_confusion_sections(run.details, classes, is_detector)]


def get_sort_key(values: dict[str, list]) -> str:
    """Return the metric by which classes are sorted."""
    return next(key for key in SORT_KEYS if key in values)


def list_classes(values: dict[str, list], classes: Sequence[str], about: str) -> list[Section]:
    """Return a table of all classes, the worst first, and plots of the extremes of many."""
    key = get_sort_key(values)
    measured = [each for each in range(len(classes)) if values[key][each] is not None]
    absent = [each for each in range(len(classes)) if values[key][each] is None]
    order = sorted(measured, key=lambda each: values[key][each])
    columns = [each for each in COLUMNS if each in values]
    rows = [[classes[k], *(values[column][k] for column in columns)] for k in order + absent]
    table = Table(['class', *(COLUMNS[each] for each in columns)], rows)
    if absent:
        about += f' {len(absent)} classes without {columns[0]} come last.'
    bars = []
    if len(rows) <= MAX_ROWS:
        if len(order) > 1:
            series = {COLUMNS[key]: [values[key][k] for k in order]}
            bars = [(COLUMNS[key], plots.draw_bars([classes[k] for k in order], series,
                                                   COLUMNS[key]))]  # yapf: disable
        return [Section('Classes', f'The worst first. {about}', bars, [table])]
    for which, ordered in (('worst', order), ('best', order[::-1])) if order else ():
        part = ordered[:MAX_BARS]
        series = {COLUMNS[key]: [values[key][k] for k in part]}
        bars.append((f'The {len(part)} {which} of {len(measured)} classes',
                     plots.draw_bars([classes[k] for k in part], series, COLUMNS[key])))
    title = f'All {len(rows)} classes, the worst first'
    return [Section('Classes', about, bars), Section(title, tables=[table], folded=True)]


def build_confusion_sections(details: dict[str, Any], classes: Sequence[str],
                             is_detector: bool) -> list[Section]:
    """Return the confusion matrix, and the pairs of classes with most errors."""
    names = [*classes, BACKGROUND if is_detector else 'no class']
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    for truth, found, count in details.get('confusion', ()):
        table[truth, found] = count
    if not table.any():
        return []
    unit = 'objects' if is_detector else 'pixels'
    totals = table.sum(axis=1, keepdims=True)
    fractions = np.divide(table, totals, out=np.full(table.shape, np.nan), where=totals > 0)
    errors = table.sum(axis=0) + table.sum(axis=1) - 2 * np.diag(table)
    chosen = sorted(np.argsort(-errors[:-1], kind='stable')[:MAX_CELLS].tolist())
    caption = f'Percent of the {unit} of each row'
    if omitted := len(classes) - len(chosen):
        caption += f'; the {omitted} classes with the fewest errors are omitted'
    if is_detector:
        chosen.append(len(classes))
    plot = plots.draw_matrix(fractions[np.ix_(chosen, chosen)], [names[k] for k in chosen],
                             'prediction', 'ground truth')  # yapf: disable
    text = 'Rows are the ground truth, columns the predictions. '
    wrong = table.copy()
    np.fill_diagonal(wrong, 0)
    if not is_detector:
        wrong[-1] = 0
    order = np.argsort(-wrong, axis=None, kind='stable')[:MAX_PAIRS]
    cells = [np.unravel_index(place, wrong.shape) for place in order]
    pairs = [[names[t], names[p], int(wrong[t, p]),
              '–' if is_detector and t == len(classes) else f'{fractions[t, p]:.1%}']
             for t, p in cells if wrong[t, p]]  # yapf: disable
    listed = Table(['ground truth', 'prediction', unit, 'fraction of the ground truth'], pairs)
    return [Section('Confusion', text + (ABOUT_CONFUSION if is_detector else ''),
                    [(caption, plot)], [listed] if pairs else ())]  # yapf: disable
