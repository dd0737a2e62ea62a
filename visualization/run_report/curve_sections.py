"""The parts of a page about what changes over iterations: metrics, losses, learning rate."""
from __future__ import annotations

from colonnade.engine.work_dir.metric_values import is_lowest

from ..html_pages import Section, Table
from . import run_plots
from .record_folder import Curve, Run

MOST_CURVES = 8  # in a plot


def metric_section(run: Run) -> list[Section]:
    """Metrics at the best and at the last evaluation, and over iterations."""
    best, last = run.best, run.last
    if best is None or last is None:
        return [Section('Metrics', text='No evaluation has measured anything.')]
    rows = [[key, *(defined(key, each['metrics'].get(key)) for each in (best, last))]
            for key in last['metrics']]
    header = ['metric', f'best: iteration {best["iteration"]}', f'last: {last["iteration"]}']
    shown = {key: curve for key, curve in run.metrics.items() if is_main(key)}
    chosen = dict(list((shown or run.metrics).items())[:MOST_CURVES])
    key = run.main_metric or ''
    mark = best['iteration'], best['metrics'][key]
    which = 'lowest' if run.lower_is_better else 'highest'
    text = f'The best evaluation is that of the {which} {key}, the last of several.'
    if is_lowest(key, mark[1]):
        text = f'No evaluation has a {key} above its lowest value: the last stands for the best.'
    if run.data_since:
        text += f' Up to iteration {run.data_since}, the validation data were others.'
    if len(run.evaluations) == 1:
        return [Section('Metrics', text=text, tables=[Table(header, rows)])]
    plot = run_plots.curves(chosen, 'metric', best=mark if key in chosen else None)
    return [Section('Metrics', text=text, plots=[('metrics of evaluations', plot)],
                    tables=[Table(header, rows)])]  # yapf: disable


def defined(key: str, value: float | None) -> float | None:
    """A metric; None for -1, by which COCO's metric says that there are no such objects."""
    return None if value == -1 and 'mAP' in key else value


def is_main(key: str) -> bool:
    """Whether a metric is among those that a plot shows."""
    return key.rpartition('/')[2] in ('PQ', 'bbox_mAP', 'bbox_mAP_50', 'segm_mAP', 'segm_mAP_50',
                                      'mIoU', 'mAcc', 'aAcc', 'mAP', 'AP50')


def curve_section(run: Run) -> list[Section]:
    """Losses and learning rate."""
    losses = {key: curve for key, curve in run.curves.items() if is_loss(key)}
    found = []
    if len(losses) == 2:  # one is the sum of the other
        losses = {'loss': losses['loss']} if 'loss' in losses else losses
    if losses:
        ordered = dict(sorted(losses.items(), key=lambda item: item[0] != 'loss'))
        shown = dict(list(ordered.items())[:MOST_CURVES])
        caption = 'losses' if len(shown) == len(losses) else f'the first {MOST_CURVES} losses'
        found.append((caption, run_plots.curves(shown, 'loss', smooth=True)))
    for key, label in (('lr', 'learning rate'), ('grad_norm', 'norm of the gradient')):
        if key in run.curves:
            curve: dict[str, Curve] = {key: run.curves[key]}
            found.append((label, run_plots.curves(curve, label, smooth=key != 'lr')))
    return [Section('Losses and learning rate', plots=found)] if found else []


def is_loss(key: str) -> bool:
    """Whether a curve is a loss."""
    return key.rpartition('.')[2].startswith('loss') or '.loss' in key
