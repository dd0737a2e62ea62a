"""A figure of panels: an image, and next to it what was computed from it."""
from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from colonnade.common.errors import UserError
from colonnade.evaluation.plots import render_figure
from colonnade.runtime.images import MAX_PIXELS

from .scales import Scale

WIDTH = 9.  # inches that panels may take side by side
AREA = 1.3  # square inches of a panel
LEAST, MOST = 0.85, 2.6  # inches of a panel's sides
LEAST_WIDTH = 4.5  # inches of a figure, for its title
LABEL_LENGTH = 15  # letters of a line of a row's label
GAP, TITLE, HEAD, EDGE, LABEL, BAR = 0.08, 0.2, 0.36, 0.1, 0.3, 0.9  # inches
LONGEST_BAR = 2.5  # inches
DPI = 150
BLACK = -200  # what black is drawn as, so that images are pale beneath maps


@dataclass(frozen=True)
class Panel:
    """One picture of a figure.

    Attributes:
        values: ``(h, w)``, or colors ``(h, w, 3)`` from 0 to 1 or of uint8.
        title: Title.
        stride: Pixels of the image that a value covers; None for matrices that are not maps of it.
        over_image: Whether the image is visible below it, in gray.
        marks: Points ``(x, y)`` in pixels of the image.
        box: ``(x1, y1, x2, y2)`` in pixels of the image.
    """
    values: np.ndarray
    title: str = ''
    stride: float | None = None
    over_image: bool = False
    marks: tuple[tuple[float, float], ...] = ()
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side, in as many lines as they need, and their label."""
    label: str
    panels: list[Panel]


@dataclass(frozen=True)
class Drawing:
    """The content of a figure.

    Attributes:
        title: Title.
        image: ``(H, W, 3)``, uint8, the first panel.
        rows: The other panels.
        scale: Scale of all values that are not colors.
        marks: Points in the panel of the image.
        nearest: Show each value as a square; otherwise maps are interpolated bilinearly.
    """
    title: str
    image: np.ndarray
    rows: list[PanelRow]
    scale: Scale | None = None
    marks: tuple[tuple[float, float], ...] = ()
    nearest: bool = False


class Grid:
    """Places of panels: the image at the top left, rows of panels right of it, all of one size.

    Attributes:
        lines: Label and panels of each line.
        size: Width and height of the figure in inches.
        end: Right edge of the panels in inches.
    """

    def __init__(self, drawing: Drawing) -> None:
        self.width, self.height = panel_size(drawing)
        columns = max(2, int(WIDTH / (self.width + GAP)))
        self.lines = list(break_rows(drawing.rows, columns - 1))
        used = 1 + max((len(panels) for _, panels in self.lines), default=0)
        self.end = EDGE + LABEL + used * (self.width + GAP)
        bar = BAR if drawing.scale and self.lines else 0.
        height = HEAD + max(1, len(self.lines)) * (self.height + TITLE) + EDGE
        self.size = max(self.end + bar, LEAST_WIDTH), height

    def axes(self, figure: Figure, column: int, line: int) -> Axes:
        """Add the axes of a panel; column 0 is that of the image."""
        x = EDGE + column * (self.width + GAP) + (LABEL if column else 0)
        y = HEAD + TITLE + line * (self.height + TITLE)
        return axes_at(figure, x, y, self.width, self.height)


def axes_at(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Add axes at a place in inches from the figure's top left."""
    across, up = figure.get_size_inches()
    return figure.add_axes((x / across, 1 - (y + height) / up, width / across, height / up))


def figure_of(drawing: Drawing) -> Figure:
    """Return the figure; its size follows from the number and shape of panels."""
    grid = Grid(drawing)
    figure = Figure(grid.size, dpi=DPI, facecolor='white')
    FigureCanvasAgg(figure)
    across, up = grid.size
    figure.text(EDGE / across, 1 - 0.2 / up, drawing.title, fontsize=9, va='center')
    image = Panel(drawing.image, 'image', stride=1., marks=drawing.marks)
    draw_panel(grid.axes(figure, 0, 0), image, drawing)
    for line, (label, panels) in enumerate(grid.lines):
        for column, panel in enumerate(panels):
            axes = grid.axes(figure, 1 + column, line)
            draw_panel(axes, panel, drawing)
            if not column:
                axes.text(-0.03, 0.5, textwrap.fill(label, LABEL_LENGTH), fontsize=7, rotation=90,
                          ha='right', va='center', multialignment='center',
                          transform=axes.transAxes)  # yapf: disable
    if drawing.scale and grid.lines:
        height = len(grid.lines) * (grid.height + TITLE) - TITLE
        bar = axes_at(figure, grid.end + GAP, HEAD + TITLE, 0.1, min(height, LONGEST_BAR))
        draw_bar(bar, drawing.scale)
    return figure


def panel_size(drawing: Drawing) -> tuple[float, float]:
    """Return the inches of each panel: of the image's shape if it has maps, otherwise square."""
    panels = [panel for row in drawing.rows for panel in row.panels]
    ratio = 1.
    if not panels or any(panel.stride for panel in panels):
        ratio = drawing.image.shape[1] / drawing.image.shape[0]
    width = min(max(math.sqrt(AREA * ratio), LEAST), MOST)
    return width, min(max(width / ratio, LEAST), MOST)


def break_rows(rows: list[PanelRow], columns: int) -> Iterator[tuple[str, list[Panel]]]:
    """Yield rows as lines of equal length, of at most this many panels."""
    for row in rows:
        count = len(row.panels)
        length = math.ceil(count / math.ceil(count / columns)) if count else 1
        for start in range(0, count, length):
            yield row.label, row.panels[start:start + length]


def draw_panel(axes: Axes, panel: Panel, drawing: Drawing) -> None:
    """Draw a panel; a map's values are where they are in the image, without padding."""
    axes.set_axis_off()
    axes.set_title(panel.title, fontsize=7, pad=2.5)
    height, width = drawing.image.shape[:2]
    if panel.over_image:
        gray = drawing.image.mean(axis=2)
        axes.imshow(gray, cmap='gray', vmin=BLACK, vmax=255, extent=(0, width, height, 0))
    style: dict = dict(interpolation='nearest')
    if panel.stride is not None:
        rows, columns = panel.values.shape[:2]
        style['extent'] = (0, columns * panel.stride, rows * panel.stride, 0)
        if not drawing.nearest:
            style['interpolation'] = 'bilinear'
    if panel.values.ndim == 2 and drawing.scale:
        colors = drawing.scale.mappable()
        style |= dict(cmap=colors.cmap, norm=colors.norm)
    axes.imshow(panel.values, **style)
    if panel.stride is not None:
        axes.set(xlim=(0, width), ylim=(height, 0))
    for edge, line in (('black', 1.8), ('white', 0.9)):  # to be seen on any ground
        for x, y in panel.marks:
            axes.plot(x, y, 'o', markersize=5, markerfacecolor='none', markeredgecolor=edge,
                      markeredgewidth=line)  # yapf: disable
        if panel.box is not None:
            x1, y1, x2, y2 = panel.box
            axes.add_patch(
                Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=edge, linewidth=line))


def draw_bar(axes: Axes, scale: Scale) -> None:
    """Draw the colors and their values."""
    bar = axes.figure.colorbar(scale.mappable(), cax=axes)
    bar.set_label(scale.label, fontsize=7)
    axes.tick_params(labelsize=6, length=2, pad=1.5)
    bar.outline.set_linewidth(0.4)


def as_bytes(figure: Figure, kind: str = 'png', dpi: int = DPI) -> bytes:
    """Return the content of a figure's file.

    Args:
        figure: Figure of :func:`figure_of`.
        kind: ``'png'``, or ``'pdf'`` with text as text.
        dpi: Pixels per inch.

    Raises:
        ValueError: If a PNG would have more than :data:`.MAX_PIXELS` pixels.
    """
    width, height = figure.get_size_inches()
    if kind == 'png' and width * height * dpi**2 > MAX_PIXELS:
        raise UserError(f'a figure of {width:.1f} x {height:.1f} inches has more than '
                        f'{MAX_PIXELS:,} pixels at {dpi} dpi: choose less')
    return render_figure(figure, kind, dpi=dpi)
