"""Sections about what changes over iterations: metrics, losses, learning rate."""
from __future__ import annotations

from colonnade.engine.work_dir.metric_values import is_lowest

from ..html_pages import Section, Table
from .record_folder import RecordedRun
from .run_plots import draw_curves

MAX_CURVES = 8  # in a plot
PLOTTED = ('PQ', 'bbox_mAP', 'bbox_mAP_50', 'segm_mAP', 'segm_mAP_50', 'mIoU', 'mAcc', 'aAcc',
           'mAP', 'AP50')


def build_metric_sections(run: RecordedRun) -> list[Section]:
    """Return metrics at the best and at the last evaluation, and over iterations."""
    best, last = run.best, run.last
    if best is None or last is None:
        return [Section('Metrics', 'No evaluation has measured anything.')]
    rows = [[key, *(get_metric(each, key) for each in (best, last))] for key in last['metrics']]
    table = Table(['metric', f'best: iteration {best["iteration"]}', f'last: {last["iteration"]}'],
                  rows)
    key = run.main_metric or ''
    mark = best['iteration'], best['metrics'][key]
    text = (f'The best evaluation is that of the {"lowest" if run.lower_is_better else "highest"} '
            f'{key}, the last of several.')
    if is_lowest(key, mark[1]):
        text = f'No evaluation has a {key} above its lowest value: the last stands for the best.'
    if run.data_since:
        text += f' Up to iteration {run.data_since}, the validation data were others.'
    if len(run.evaluations) == 1:
        return [Section('Metrics', text, tables=[table])]
    plotted = {key: curve for key, curve in run.metrics.items() if is_plotted(key)}
    curves = dict(list((plotted or run.metrics).items())[:MAX_CURVES])
    plot = draw_curves(curves, 'metric', best=mark if key in curves else None)
    return [Section('Metrics', text, [('metrics of evaluations', plot)], [table])]


def get_metric(evaluation: dict, key: str) -> float | None:
    """Return a metric; None for -1, with which COCO's metric says that there are no objects."""
    value = evaluation.get('metrics', {}).get(key)
    return None if value == -1 and 'mAP' in key else value


def is_plotted(key: str) -> bool:
    """Return True for a metric that a plot shows."""
    return key.rpartition('/')[2] in PLOTTED


def build_loss_sections(run: RecordedRun) -> list[Section]:
    """Return losses, learning rate and norm of the gradient."""
    losses = {key: curve for key, curve in run.curves.items() if is_loss(key)}
    plots = []
    if len(losses) == 2 and 'loss' in losses:  # the other one is the same
        losses = {'loss': losses['loss']}
    if losses:
        ordered = sorted(losses.items(), key=lambda item: item[0] != 'loss')
        caption = f'the first {MAX_CURVES} losses' if len(losses) > MAX_CURVES else 'losses'
        plots.append((caption, draw_curves(dict(ordered[:MAX_CURVES]), 'loss', smooth=True)))
    for key, label in (('lr', 'learning rate'), ('grad_norm', 'norm of the gradient')):
        if key in run.curves:
            curves = {key: run.curves[key]}
            plots.append((label, draw_curves(curves, label, smooth=key != 'lr')))
    return [Section('Losses and learning rate', plots=plots)] if plots else []


def is_loss(key: str) -> bool:
    """Return True for a curve that is a loss."""
    return key.rpartition('.')[2].startswith('loss') or '.loss' in key
