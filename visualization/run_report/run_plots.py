"""Plots of curves and classes of a run."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from colonnade.evaluation.plots import COLORS, GRAY, escape_math, new_figure, shorten_label

from .record_folder import Curve

WIDTH = 5.8  # inches; two plots fit side by side
MAX_NAME = 24  # characters of a class name
MAX_MARKERS = 40  # points; longer curves have no markers
MAX_POINTS = 500  # points of a curve
MAX_BARS = 15  # classes in a bar plot
MAX_CELLS = 20  # classes in a confusion matrix
SMOOTHING = 3.  # standard deviation of the kernel, in percent of a curve's length


def draw_curves(lines: Mapping[str, Curve],
                ylabel: str,
                *,
                best: tuple[int, float] | None = None,
                smooth: bool = False,
                colors: Mapping[str, str] | None = None) -> Figure:
    """Return a plot of values over iterations.

    Args:
        lines: Curves by name, at most as many as there are colors.
        ylabel: Label of the values.
        best: Point to mark.
        smooth: Whether to draw curves pale, with smoothed curves over them.
        colors: Color of each name, also of names without a curve. Adds a legend.
    """
    figure, axes = new_figure(WIDTH)
    chosen = colors or dict(zip(lines, COLORS, strict=False))
    for name, curve in lines.items():
        x, y = np.asarray(curve, dtype=float).T
        indices = np.linspace(0, len(x) - 1, min(len(x), MAX_POINTS)).astype(int)
        values = y[indices]
        if smooth and len(x) > MAX_MARKERS:
            axes.plot(x[indices], values, color=chosen[name], alpha=0.25, linewidth=0.8)
            values = smooth_values(y, indices)
        marker = '' if len(indices) > MAX_MARKERS else 'o'
        axes.plot(x[indices], values, color=chosen[name], label=shorten_label(name, MAX_NAME),
                  linewidth=1.6, marker=marker, markersize=3.5)  # yapf: disable
    if best is not None:
        axes.plot(*best, marker='*', markersize=13, color='#E69F00', markeredgecolor='black',
                  linestyle='', label=f'best: {best[1]:.4g} at {best[0]}')  # yapf: disable
    axes.set(xlabel='iteration', ylabel=escape_math(ylabel))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if len(lines) > 1 or best is not None or colors:
        has_short_names = max(map(len, lines)) <= MAX_NAME // 2
        figure.legend(loc='outside upper left', ncols=4 if has_short_names else 2, frameon=False,
                      fontsize=8)  # yapf: disable
    return figure


def smooth_values(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the running mean at some indices, with Gaussian weights."""
    width = max(1., len(values) * SMOOTHING / 100)
    reach = int(3 * width)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width)**2)
    means = []
    for index in indices:
        part = values[max(0, index - reach):index + reach + 1]
        first = max(0, reach - index)
        means.append(np.average(part, weights=kernel[first:first + len(part)]))
    return np.array(means)


def draw_bars(names: Sequence[str], values: Sequence[float], xlabel: str) -> Figure:
    """Return a plot with a bar per class, the first on top."""
    figure, axes = new_figure(WIDTH, 0.8 + 0.24 * len(names))
    rows = np.arange(len(names))
    axes.barh(rows, values, color=COLORS[0], height=0.7)
    axes.set_yticks(rows, [shorten_label(name, MAX_NAME) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.grid(False, axis='y')
    axes.set(xlim=(0, max(1., *values)), xlabel=xlabel)
    for row, value in zip(rows, values, strict=True):
        axes.text(value, row, f' {value:.2f}', va='center', fontsize=8, color=GRAY)
    return figure


def draw_precision_recall(lines: Sequence[dict[str, Any]], classes: Sequence[str]) -> Figure:
    """Return a plot of precision over recall: the mean in black, classes in colors."""
    figure, axes = new_figure(WIDTH)
    colors = iter(COLORS)
    for line in lines:
        precision = np.array(line['precision'], dtype=float)
        style: dict[str, Any] = dict(color='black', linewidth=2.4, label='mean')
        if line['label'] is not None:
            name = shorten_label(classes[line['label']], MAX_NAME)
            style = dict(color=next(colors), linewidth=1.2, label=f'{name} {precision.mean():.2f}')
        axes.plot(np.linspace(0, 1, len(precision)), precision, **style)
    axes.set(xlabel='recall', ylabel='precision at IoU 0.5', xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
    return figure


def draw_confusion(fractions: np.ndarray, names: Sequence[str]) -> Figure:
    """Return a plot of a confusion matrix ``(R, R)``; rows without objects are NaN."""
    side = 2.2 + 0.36 * len(names)
    figure, axes = new_figure(side, side * (0.75 if len(names) > 6 else 0.85))
    axes.grid(False)
    axes.imshow(np.nan_to_num(fractions), cmap='Blues', vmin=0, vmax=1, aspect='auto')
    for (row, column), value in np.ndenumerate(fractions):
        if np.isfinite(value) and value >= 0.005:
            axes.text(column, row, f'{100 * value:.0f}', ha='center', va='center', fontsize=7,
                      color='white' if value > 0.55 else 'black')  # yapf: disable
    labels = [shorten_label(name, MAX_NAME) for name in names]
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    # Rotated labels end at their columns in any font.
    axes.set_xticks(range(len(names)), labels, fontsize=8, rotation=60, ha='right',
                    rotation_mode='anchor')  # yapf: disable
    axes.set(xlabel='prediction', ylabel='truth')
    return figure
