"""Plots of pages: curves, bars, histograms and matrices in one style."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from colonnade.evaluation.plots import COLORS, GRAY, escape_math, new_figure, shorten_label

WIDTH = 5.8  # inches; two plots fit side by side
MAX_NAME = 24  # characters of a name
MAX_MARKERS = 40  # points; longer curves have no markers
MAX_POINTS = 500  # points of a curve
MAX_SIZES = 2000  # points in the plot of image sizes
NUM_BINS = 32  # bars of a histogram
SMOOTHING = 3.  # standard deviation of the kernel, in percent of a curve's length


def draw_curves(lines: Mapping[str, np.ndarray],
                ylabel: str,
                *,
                best: tuple[int, float] | None = None,
                smooth: bool = False,
                colors: Mapping[str, str] | None = None) -> Figure:
    """Return a plot of values over iterations.

    Args:
        lines: Curves by name, iterations and values ``(N, 2)``, at most as many as there are
            colors.
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


def draw_bars(names: Sequence[str], series: Mapping[str, Sequence[float] | np.ndarray],
              xlabel: str) -> Figure:  # yapf: disable
    """Return a plot with a bar of each series per name, the first on top, and their values."""
    figure, axes = new_figure(WIDTH, 1.1 + 0.24 * max(len(names), 2))
    rows, height = np.arange(len(names)), 0.8 / len(series)
    for index, (label, values) in enumerate(series.items()):
        bars = axes.barh(rows - 0.4 + height * (index + 0.5), values, height, label=label,
                         color=COLORS[index])  # yapf: disable
        axes.bar_label(bars, fmt='%.2f', padding=3, fontsize=8 if len(series) == 1 else 5,
                       color=GRAY)  # yapf: disable
    axes.set_yticks(rows, [shorten_label(name, MAX_NAME) for name in names], fontsize=8)
    axes.set(ylim=(max(len(names), 1) - 0.4, -0.6), xlabel=xlabel)
    axes.grid(False, axis='y')
    if len(series) > 1:
        _add_legend(figure)
    return figure


def draw_matrix(fractions: np.ndarray, names: Sequence[str], xlabel: str, ylabel: str) -> Figure:
    """Return a plot of a matrix ``(K, K)`` of fractions, in percent; NaN is blank."""
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
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure


def draw_histograms(series: Mapping[str, np.ndarray],
                    xlabel: str,
                    *,
                    unit: str = 'images',
                    log: bool = False,
                    lines: Sequence[float] = ()) -> Figure:
    """Return a plot of the distributions of several series, in percent of ``unit``.

    Args:
        series: Values ``(N,)`` by name.
        xlabel: Label of the values.
        unit: What the values are of.
        log: Whether the axis is logarithmic; values that are not positive are omitted then.
        lines: Values to mark.
    """
    figure, axes = new_figure(WIDTH, 2.9)
    values = {name: each[each > 0] if log else each for name, each in series.items()}
    edges = choose_edges(np.concatenate(list(values.values())), log=log)
    for index, (name, each) in enumerate(values.items()):
        if len(each):
            style: dict[str, Any] = dict(histtype='step')
            if index == 0:
                style = dict(histtype='stepfilled', alpha=0.45)
            axes.hist(each, edges, weights=np.full(len(each), 100 / len(each)), label=name,
                      color=COLORS[index], linewidth=1.6, **style)  # yapf: disable
    for line in lines:
        axes.axvline(line, color='#333333', linestyle=':', linewidth=1)
    if log:
        axes.set_xscale('log')
        steps = (1, 2, 5) if edges[-1] > 10 * edges[0] else (1, 1.5, 2, 3, 5, 7)
        axes.xaxis.set_major_locator(LogLocator(subs=steps))
        axes.xaxis.set_major_formatter('{x:g}')
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=xlabel, ylabel=f'{unit}, %')
    _add_legend(figure)
    return figure


def choose_edges(values: np.ndarray, *, log: bool) -> np.ndarray:
    """Return the edges of a histogram's bins; few integers get one bin each."""
    if not len(values):
        return np.array([0.5, 1.5])
    low, high = float(values.min()), float(values.max())
    if log:
        return np.geomspace(low * 0.98, high * 1.02, NUM_BINS + 1)
    if (values == values.round()).all():
        step = max(1, int(np.ceil((high - low + 1) / NUM_BINS)))
        return np.arange(low - 0.5, high + step + 0.5, step)
    return np.linspace(low, high if high > low else low + 1, NUM_BINS + 1)


def draw_sizes(series: Mapping[str, np.ndarray]) -> Figure:
    """Return a plot of widths and heights ``(N, 2)``; larger points stand for more images."""
    figure, axes = new_figure(WIDTH, 3.8)
    for index, (name, each) in enumerate(series.items()):
        if len(each):
            sizes, counts = np.unique(each, axis=0, return_counts=True)
            order = np.argsort(-counts, kind='stable')[:MAX_SIZES]
            widths, heights = sizes[order].T
            axes.scatter(widths, heights, s=14 + 120 * counts[order] / counts.max(), label=name,
                         alpha=0.5, color=COLORS[index], linewidths=0,
                         rasterized=len(order) > 300)  # yapf: disable
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set(xlabel='width, pixels', ylabel='height, pixels')
    _add_legend(figure, markerscale=0.8)
    return figure


def draw_points(series: Mapping[str, np.ndarray], xlabel: str, ylabel: str, *,
                log: bool = False) -> Figure:  # yapf: disable
    """Return a plot of points ``(N, 2)`` by name; ``log`` is for the horizontal axis."""
    figure, axes = new_figure(WIDTH)
    for index, (name, points) in enumerate(series.items()):
        if len(points):
            axes.scatter(*points.T, label=name, color=COLORS[index])
    axes.set(xlabel=escape_math(xlabel), ylabel=escape_math(ylabel))
    if log:
        axes.set_xscale('log')
    _add_legend(figure)
    return figure


def draw_density(counts: np.ndarray, title: str, label: str) -> Figure:
    """Return a plot of counts on a grid over the image, divided by their mean."""
    figure, axes = new_figure(3.4, 2.6)
    density = counts / max(counts.sum(), 1) * counts.size
    image = axes.imshow(density, cmap='viridis', extent=(0, 1, 1, 0), aspect='auto', vmin=0)
    figure.colorbar(image, label=label)
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=10)
    return figure


def _add_legend(figure: Figure, **style: Any) -> None:
    """Add the names of series above the data, if anything is drawn."""
    if figure.axes[0].get_legend_handles_labels()[0]:
        figure.legend(loc='outside upper right', ncols=3, frameon=False, **style)
