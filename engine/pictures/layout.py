"""A figure of panels: an image, and beside it what was computed of it. No state of pyplot."""
from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

WIDTH = 8.  # inches that panels may take side by side
AREA = 1.5  # square inches of a panel
LEAST, MOST = 0.7, 4.  # inches of a panel's sides
LEAST_WIDTH = 4.  # inches of a figure, for its title
GAP, TITLE, HEAD, EDGE, LABEL, BAR = 0.08, 0.2, 0.36, 0.1, 0.2, 0.85  # inches
DPI = 150
OPACITY = 0.85  # of the greatest values that lie over an image; 0 is transparent


@dataclass(frozen=True)
class Scale:
    """How values become colours.

    Attributes:
        label: What the values are.
        low, high: Those of the first and the last colour.
        colours: A colour map of matplotlib's.
        transparent: Let low values be transparent, for maps over an image.
    """
    label: str
    low: float
    high: float
    colours: str = 'magma'
    transparent: bool = False

    @classmethod
    def from_zero(cls, label: str, arrays: Iterable[np.ndarray], share: float = 1.) -> Scale:
        """From 0 to the value that this ``share`` of all values does not exceed."""
        high = float(np.quantile(np.concatenate([a.ravel() for a in arrays]), share))
        return cls(label, 0., high or 1.)

    @classmethod
    def around_zero(cls, label: str, arrays: Iterable[np.ndarray], share: float = 1.) -> Scale:
        """The same distance below and above 0, of two hues."""
        high = cls.from_zero(label, (np.abs(a) for a in arrays), share).high
        return cls(label, -high, high, 'coolwarm')

    def mappable(self) -> ScalarMappable:
        """Values to colours, as matplotlib wants them."""
        colours: Colormap = colormaps[self.colours]
        if self.transparent:
            table = colours(np.linspace(0, 1, 256))
            table[:, 3] = np.linspace(0, 1, 256)**0.5 * OPACITY
            colours = ListedColormap(table)
        return ScalarMappable(Normalize(self.low, self.high), colours)


@dataclass(frozen=True)
class Panel:
    """One picture of a figure.

    Attributes:
        values: ``(h, w)``, or colours ``(h, w, 3)`` from 0 to 1 or of uint8.
        title: What stands above it.
        stride: Pixels of the image that a value covers, for maps of it; None for other matrices.
        over_image: Whether the image, in gray, shines through.
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
class Row:
    """Panels side by side, in as many lines as they need, and what stands left of them."""
    label: str
    panels: list[Panel]


@dataclass(frozen=True)
class Drawing:
    """All that a figure shows.

    Attributes:
        title: What stands above it.
        image: ``(H, W, 3)``, uint8, the first panel.
        rows: The other panels.
        scale: Of all values that are no colours.
        marks: Points in the image's own panel.
        nearest: Show each value as a square; otherwise maps are interpolated bilinearly.
    """
    title: str
    image: np.ndarray
    rows: list[Row]
    scale: Scale | None = None
    marks: tuple[tuple[float, float], ...] = ()
    nearest: bool = False


def figure_of(drawing: Drawing) -> Figure:
    """The figure; its size in inches follows from the number and shape of panels."""
    width, height = panel_size(drawing)
    columns = max(2, int(WIDTH / (width + GAP)))
    lines = list(lines_of(drawing.rows, columns - 1))
    used = 1 + max((len(panels) for _, panels in lines), default=0)
    end = EDGE + LABEL + used * (width + GAP)
    size = (max(end + (BAR if drawing.scale and lines else 0),
                LEAST_WIDTH), HEAD + max(1, len(lines)) * (height + TITLE) + EDGE)
    figure = Figure(size, dpi=DPI, facecolor='white')
    FigureCanvasAgg(figure)
    figure.text(EDGE / size[0], 1 - 0.2 / size[1], drawing.title, fontsize=9, va='center')

    def place(column: int, line: int) -> Axes:
        x = EDGE + column * (width + GAP) + (LABEL if column else 0)
        y = HEAD + TITLE + line * (height + TITLE)
        across, up = size
        axes = figure.add_axes((x / across, 1 - (y + height) / up, width / across, height / up))
        axes.set_axis_off()
        return axes

    first = Panel(drawing.image, 'image', stride=1., marks=drawing.marks)
    draw_panel(place(0, 0), first, drawing)
    for number, (label, panels) in enumerate(lines):
        for column, panel in enumerate(panels):
            axes = place(1 + column, number)
            draw_panel(axes, panel, drawing)
            if label and not column:
                axes.text(-0.03, 0.5, label, fontsize=7, rotation=90, ha='right', va='center',
                          transform=axes.transAxes)  # yapf: disable
    if drawing.scale and lines:
        draw_bar(figure, drawing.scale, end + GAP, HEAD + TITLE,
                 len(lines) * (height + TITLE) - TITLE)
    return figure


def panel_size(drawing: Drawing) -> tuple[float, float]:
    """Inches of each panel: of the image's shape if it has maps, else square."""
    panels = [panel for row in drawing.rows for panel in row.panels]
    ratio = 1.
    if not panels or any(panel.stride for panel in panels):
        ratio = drawing.image.shape[1] / drawing.image.shape[0]
    width = min(max(math.sqrt(AREA * ratio), LEAST), MOST)
    return width, min(max(width / ratio, LEAST), MOST)


def lines_of(rows: list[Row], columns: int) -> Iterator[tuple[str, list[Panel]]]:
    """Rows broken into lines of equal length, of at most so many panels."""
    for row in rows:
        count = len(row.panels)
        length = math.ceil(count / math.ceil(count / columns)) if count else 1
        for start in range(0, count, length):
            yield row.label, row.panels[start:start + length]


def draw_panel(axes: Axes, panel: Panel, drawing: Drawing) -> None:
    """One panel; a map's values lie where they are of the image, and padding is cut off."""
    height, width = drawing.image.shape[:2]
    axes.set_title(panel.title, fontsize=7, pad=2.5)
    if panel.over_image:
        gray = drawing.image.mean(axis=2)
        axes.imshow(gray, cmap='gray', vmin=-85, vmax=255, extent=(0, width, height, 0))
    style: dict = dict(interpolation='nearest')
    if panel.stride is not None:
        rows, columns = panel.values.shape[:2]
        style['extent'] = (0, columns * panel.stride, rows * panel.stride, 0)
        if not drawing.nearest:
            style['interpolation'] = 'bilinear'
    if panel.values.ndim == 2 and drawing.scale:
        colours = drawing.scale.mappable()
        style |= dict(cmap=colours.cmap, norm=colours.norm)
    axes.imshow(panel.values, **style)
    if panel.stride is not None:
        axes.set(xlim=(0, width), ylim=(height, 0))
    for x, y in panel.marks:
        axes.plot(x, y, 'o', markersize=5, markerfacecolor='none', markeredgecolor='black',
                  markeredgewidth=1.8)  # yapf: disable
        axes.plot(x, y, 'o', markersize=5, markerfacecolor='none', markeredgecolor='white',
                  markeredgewidth=0.9)  # yapf: disable
    if panel.box is not None:
        x1, y1, x2, y2 = panel.box
        for colour, line in (('black', 1.8), ('white', 0.9)):
            axes.add_patch(
                Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=line))


def draw_bar(figure: Figure, scale: Scale, x: float, y: float, height: float) -> None:
    """The colours and their values, at a place in inches from the top left."""
    across, up = figure.get_size_inches()
    height = min(height, 2.5)
    axes = figure.add_axes((x / across, 1 - (y + height) / up, 0.1 / across, height / up))
    bar = figure.colorbar(scale.mappable(), cax=axes)
    bar.set_label(scale.label, fontsize=7)
    bar.ax.tick_params(labelsize=6, length=2, pad=1.5)
    bar.outline.set_linewidth(0.4)


def as_bytes(figure: Figure, kind: str = 'png', dpi: int = DPI) -> bytes:
    """A figure as a file's content.

    Args:
        figure: Of :func:`figure_of`.
        kind: ``'png'``, or ``'pdf'`` with text as text.
        dpi: Pixels of an inch.
    """
    file = io.BytesIO()
    with rc_context({'pdf.fonttype': 42}):
        figure.savefig(file, format=kind, dpi=dpi)
    return file.getvalue()
