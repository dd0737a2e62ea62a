"""Plots of a run's curves and classes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from colonnade.common.plots import COLORS, GRAY, escape_math, new_figure, shorten_label

from .record_folder import Curve

WIDTH = 5.8  # inches, of which two are beside each other in a page
LONGEST_NAME = 24  # letters of a class in a plot
MANY_POINTS = 40  # from which on a curve has no dots
MOST_POINTS = 500  # of a curve that are drawn
BARS = 15  # classes in a plot
CELLS = 20  # classes in a picture of confusion
SPREAD = 3.  # smoothing of noisy curves, in percent of their length


def curves(lines: Mapping[str, Curve],
           ylabel: str,
           *,
           best: tuple[int, float] | None = None,
           smooth: bool = False,
           colours: Mapping[str, str] | None = None) -> Figure:
    """Values over iterations.

    Args:
        lines: Curves by their names, at most as many as there are colours.
        ylabel: What the values are.
        best: A point to mark.
        smooth: Whether curves are noisy: they are drawn pale, and smoothed over them.
        colours: Of all names, also those without a curve here; there is a legend then.
    """
    drawn, axes = new_figure(WIDTH)
    chosen = colours or dict(zip(lines, COLORS, strict=False))
    for name, curve in lines.items():
        colour = chosen[name]
        x, y = np.asarray(curve, dtype=float).T
        places = np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int)
        x, drawn_y = x[places], y[places]
        if smooth and len(x) > MANY_POINTS:
            axes.plot(x, drawn_y, color=colour, alpha=0.25, linewidth=0.8)
            drawn_y = smoothed(y, places)
        axes.plot(
            x, drawn_y, color=colour, label=shorten_label(name, LONGEST_NAME), linewidth=1.6,
            marker='' if len(x) > MANY_POINTS else 'o', markersize=3.5)  # yapf: disable
    if best is not None:
        axes.plot(
            *best, marker='*', markersize=13, color='#E69F00', markeredgecolor='black',
            linestyle='', label=f'best: {best[1]:.4g} at {best[0]}')  # yapf: disable
    axes.set_xlabel('iteration')
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_ylabel(escape_math(ylabel))
    if len(lines) > 1 or best is not None or colours:
        few = max(map(len, lines)) <= LONGEST_NAME // 2
        drawn.legend(loc='outside upper left', ncols=4 if few else 2, frameon=False, fontsize=8)
    return drawn


def smoothed(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """A running mean at some places, with weights of a bell curve that is cut off at the ends."""
    width = max(1., len(values) * SPREAD / 100)
    reach = int(3 * width)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width)**2)
    means = []
    for place in places:
        part = values[max(0, place - reach):place + reach + 1]
        first = max(0, reach - place)
        means.append(np.average(part, weights=kernel[first:first + len(part)]))
    return np.array(means)


def bars(names: Sequence[str], values: Sequence[float], xlabel: str) -> Figure:
    """A bar for each class, the first on top."""
    drawn, axes = new_figure(WIDTH, 0.8 + 0.24 * len(names))
    places = np.arange(len(names))
    axes.barh(places, values, color=COLORS[0], height=0.7)
    axes.set_yticks(places, [shorten_label(name, LONGEST_NAME) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.grid(False, axis='y')
    axes.set_xlim(0, max(1., *values))
    for place, value in zip(places, values, strict=True):
        axes.text(value, place, f' {value:.2f}', va='center', fontsize=8, color=GRAY)
    axes.set_xlabel(xlabel)
    return drawn


def precision_recall(lines: Sequence[dict[str, Any]], classes: Sequence[str]) -> Figure:
    """Precision over recall: the mean black, classes in colours."""
    drawn, axes = new_figure(WIDTH)
    colours = iter(COLORS)
    for line in lines:
        label, precision = line['label'], np.array(line['precision'], dtype=float)
        mean, x = label is None, np.linspace(0, 1, len(precision))
        axes.plot(
            x,
            precision,
            color='black' if mean else next(colours),
            linewidth=2.4 if mean else 1.2,
            label='mean of classes'
            if mean else f'{shorten_label(classes[label], LONGEST_NAME)} {precision.mean():.2f}')
    axes.set_xlabel('recall')
    axes.set_ylabel('precision at IoU 0.5')
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
    return drawn


def confusion(shares: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Shares of each row as a picture with numbers.

    Args:
        shares: Of the rows' truth, ``(R, C)``; NaN in rows without any.
    """
    side = 2.2 + 0.36 * max(len(rows), len(columns))
    drawn, axes = new_figure(side, side * (0.75 if len(rows) > 6 else 0.85))
    axes.grid(False)
    axes.imshow(np.nan_to_num(shares), cmap='Blues', vmin=0, vmax=1, aspect='auto')
    for (row, column), share in np.ndenumerate(shares):
        if np.isfinite(share) and share >= 0.005:
            axes.text(
                column, row, f'{100 * share:.0f}', ha='center', va='center', fontsize=7,
                color='white' if share > 0.55 else 'black')  # yapf: disable
    for axis, names in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_ticks(
            range(len(names)), [shorten_label(name, LONGEST_NAME) for name in names], fontsize=8)
    for label in axes.get_xticklabels():  # which end at their columns in any font
        label.set(rotation=60, ha='right', rotation_mode='anchor')
    axes.set(xlabel='prediction', ylabel='truth')
    return drawn
