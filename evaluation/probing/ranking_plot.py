"""The comparison as a picture: quality against cost, with the backbones that no other one beats."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation
from matplotlib.ticker import ScalarFormatter
from matplotlib.transforms import Bbox

from colonnade.common.atomic_files import atomic_write
from colonnade.evaluation.plots import BLUE, GRAY, ORANGE, new_figure, render_figure

from .ranking import Row

COSTS: dict[str, tuple[Callable[[Row], float], str]] = {  # name -> cost of a row, label
    'time': (lambda row: 1000 * row.seconds, 'milliseconds per image'),
    'multiply-adds': (lambda row: row.multiply_adds / 1e9, 'multiply-adds per image, G'),
    'parameters': (lambda row: row.parameters / 1e6, 'parameters, M'),
}
PNG_DPI = 120  # pixels per inch
MARKER = 8  # points
DISTANCES = (9, 16, 26, 40, 60, 85, 115)  # of labels from their points, in points
ANGLES = (0, 180, 90, 270, 45, 135, 315, 225)  # degrees, the preferred ones first


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points ``(cost, quality)`` that no other one beats, the cheapest first.

    A point is beaten by one that is no worse in both and better in one.
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        is_equal = bool(front) and points[index] == points[front[-1]]
        if not front or points[index][1] > points[front[-1]][1] or is_equal:
            front.append(index)
    return front


def draw(rows: Sequence[Row], path: Path, title: str, cost: str = 'time') -> None:
    """Write the picture, in the format that the file's ending names.

    Args:
        rows: What was measured.
        path: File to write, atomically.
        title: What stands above it.
        cost: What the horizontal axis shows, of :data:`COSTS`.

    Raises:
        OSError: If it cannot be written.
    """
    figure, axes = new_figure(8., 5.)
    FigureCanvasAgg(figure)  # which measures texts
    cost_of, label = COSTS[cost]
    costs = [cost_of(row) for row in rows]
    linear, nearest = [row.linear_miou for row in rows], [row.knn_miou for row in rows]
    points = list(zip(costs, linear, strict=True))
    front = pareto_front(points)
    steps = stairs([points[index] for index in front])
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
    figure.set_layout_engine('none')  # what labels are placed by must not move any more
    between = (_lines(axes, [(x, a), (x, b)])
               for x, a, b in zip(costs, linear, nearest, strict=True))  # yapf: disable
    taken = [legend.get_window_extent(), *_boxes(axes, points), *_lines(axes, steps),
             *itertools.chain(*between),
             *_boxes(axes, list(zip(costs, nearest, strict=True)))]  # yapf: disable
    for point, row in zip(points, rows, strict=True):
        taken.append(_place(axes, row.backbone, point, taken))
    with atomic_write(path) as scratch:
        scratch.write_bytes(render_figure(figure, path.suffix[1:], dpi=PNG_DPI, text_as_paths=True))


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of the front through points that rise: to the right, then up."""
    corners = list(points[:1])
    for (_, below), (right, above) in itertools.pairwise(points):
        corners += [(right, below), (right, above)]
    return corners


def _lines(axes: Axes, corners: Sequence[tuple[float, float]]) -> list[Bbox]:
    """What lines along both axes cover, in pixels."""
    ends = itertools.pairwise(axes.transData.transform(corners))
    return [
        Bbox.from_extents(min(x0, x1) - 1,
                          min(y0, y1) - 1,
                          max(x0, x1) + 1,
                          max(y0, y1) + 1) for (x0, y0), (x1, y1) in ends
    ]


def _boxes(axes: Axes, points: Sequence[tuple[float, float]]) -> list[Bbox]:
    """What markers cover, in pixels."""
    half = MARKER * axes.figure.dpi / 72 / 2
    return [
        Bbox.from_extents(x - half, y - half, x + half, y + half)
        for x, y in axes.transData.transform(points)
    ]


def _place(axes: Axes, text: str, point: tuple[float, float], taken: Sequence[Bbox]) -> Bbox:
    """Write a label where it covers nothing, as near to its point as can be; gives what it covers.

    If there is no such place, it is written at the farthest.
    """
    for distance, angle in itertools.product(DISTANCES, ANGLES):
        label = _label(axes, text, point, distance, angle)
        box = label.get_window_extent()
        inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 \
            and axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1
        is_last = (distance, angle) == (DISTANCES[-1], ANGLES[-1])
        if is_last or inside and not any(box.overlaps(other) for other in taken):
            return box
        label.remove()
    raise AssertionError('the last place is always taken')


def _label(axes: Axes, text: str, point: tuple[float, float], distance: float,
           angle: float) -> Annotation:
    """A label beside a point, with a line to it if it is not next to it."""
    x, y = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    line = dict(arrowstyle='-', color=GRAY, linewidth=0.6) if distance > DISTANCES[1] else None
    return axes.annotate(
        text, point, (distance * x, distance * y), textcoords='offset points', fontsize=8,
        ha='center' if abs(x) < 0.5 else 'left' if x > 0 else 'right',
        va='center' if abs(y) < 0.5 else 'bottom' if y > 0 else 'top',
        arrowprops=line, zorder=6)  # yapf: disable
