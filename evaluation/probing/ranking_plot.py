"""Ranking as a plot of quality over cost, with the Pareto front."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import ScalarFormatter
from matplotlib.transforms import Bbox

from colonnade.common.atomic_files import atomic_write
from colonnade.evaluation.plots import BLUE, GRAY, ORANGE, new_figure, render_figure

from .ranking import RankingRow

COSTS: dict[str, tuple[Callable[[RankingRow], float], str]] = {  # name -> cost of a row, label
    'time': (lambda row: 1000 * row.seconds, 'milliseconds per image'),
    'multiply-adds': (lambda row: row.multiply_adds / 1e9, 'multiply-adds per image, G'),
    'parameters': (lambda row: row.parameters / 1e6, 'parameters, M'),
}
PNG_DPI = 120  # pixels per inch
MARKER = 8  # points
DISTANCES = (9, 16, 26, 40, 60, 85, 115)  # distances of labels from their markers, in points
ANGLES = (0, 180, 90, 270, 45, 135, 315, 225)  # degrees, preferred ones first


def find_pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points ``(cost, quality)`` that no other dominates, cheapest first.
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        is_equal = bool(front) and points[index] == points[front[-1]]
        if not front or points[index][1] > points[front[-1]][1] or is_equal:
            front.append(index)
    return front


def draw_ranking(rows: Sequence[RankingRow], path: Path, title: str, cost: str = 'time') -> None:
    """Write the plot atomically, in the format of the file extension; ``cost`` is its x-axis."""
    figure, axes = new_figure(8., 5.)
    FigureCanvasAgg(figure)  # measures text
    compute_cost, label = COSTS[cost]
    costs = [compute_cost(row) for row in rows]
    linear, nearest = [row.linear_miou for row in rows], [row.knn_miou for row in rows]
    points = list(zip(costs, linear, strict=True))
    front = find_pareto_front(points)
    steps = build_steps([points[index] for index in front])
    axes.vlines(costs, linear, nearest, color=GRAY, linewidth=0.8, alpha=0.6, zorder=1)
    axes.plot(*zip(*steps, strict=True), '-', color=BLUE, zorder=2,
              label='Pareto front, linear')  # yapf: disable
    axes.plot(costs, linear, 'o', markerfacecolor='white', markeredgecolor=BLUE, zorder=3,
              markersize=MARKER, label='linear')  # yapf: disable
    axes.plot([costs[i] for i in front], [linear[i] for i in front], 'o', color=BLUE, zorder=4,
              markersize=MARKER, label='linear, on the front')  # yapf: disable
    axes.plot(costs, nearest, 's', color=ORANGE, markeredgecolor='white', zorder=5,
              markersize=0.6 * MARKER, label='k-NN')  # yapf: disable
    axes.set(xscale='log', xlabel=label, ylabel='mIoU of frozen features, %',
             title=title)  # yapf: disable
    axes.margins(x=0.2, y=0.15)
    ticks = ScalarFormatter()
    axes.xaxis.set(major_formatter=ticks, minor_formatter=ticks)
    axes.tick_params(axis='x', which='both', labelsize='small')
    legend = axes.legend(fontsize='small')
    figure.draw_without_rendering()
    figure.set_layout_engine('none')  # Labels are placed relative to the present layout.
    lines = [steps, *([(x, a), (x, b)] for x, a, b in zip(costs, linear, nearest, strict=True))]
    taken = [legend.get_window_extent(), *_find_markers(axes, points),
             *_find_markers(axes, list(zip(costs, nearest, strict=True))),
             *itertools.chain(*(_find_lines(axes, line) for line in lines))]  # yapf: disable
    for point, row in zip(points, rows, strict=True):
        taken.append(_place_label(axes, row.backbone, point, taken))
    with atomic_write(path) as scratch:
        scratch.write_bytes(render_figure(figure, path.suffix[1:], dpi=PNG_DPI, text_as_paths=True))


def build_steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a step function through rising points."""
    corners = list(points[:1])
    for (_, below), (right, above) in itertools.pairwise(points):
        corners += [(right, below), (right, above)]
    return corners


def _find_lines(axes: Axes, corners: Sequence[tuple[float, float]]) -> list[Bbox]:
    """Return the pixels that horizontal and vertical lines cover."""
    ends = itertools.pairwise(axes.transData.transform(corners))
    return [Bbox.from_extents(min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1)
            for (x0, y0), (x1, y1) in ends]  # yapf: disable


def _find_markers(axes: Axes, points: Sequence[tuple[float, float]]) -> list[Bbox]:
    """Return the pixels that markers cover."""
    half = MARKER * axes.figure.dpi / 72 / 2
    return [Bbox.from_extents(x - half, y - half, x + half, y + half)
            for x, y in axes.transData.transform(points)]  # yapf: disable


def _place_label(axes: Axes, text: str, point: tuple[float, float], taken: Sequence[Bbox]) -> Bbox:
    """Write a label at the nearest free position, or else the farthest, and return its pixels."""
    for distance, angle in itertools.product(DISTANCES, ANGLES):
        x, y = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        line = dict(arrowstyle='-', color=GRAY, linewidth=0.6) if distance > DISTANCES[1] else None
        label = axes.annotate(
            text, point, (distance * x, distance * y), textcoords='offset points', fontsize=8,
            ha='center' if abs(x) < 0.5 else 'left' if x > 0 else 'right',
            va='center' if abs(y) < 0.5 else 'bottom' if y > 0 else 'top',
            arrowprops=line, zorder=6)  # yapf: disable
        box = label.get_window_extent()
        inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 \
            and axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1
        is_last = (distance, angle) == (DISTANCES[-1], ANGLES[-1])
        if is_last or inside and not any(box.overlaps(other) for other in taken):
            return box
        label.remove()
    raise AssertionError('the last position is always used')
