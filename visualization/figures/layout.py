"""Layout of figures: an image, and next to it panels of values as colors."""
from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from colonnade.common.errors import UserError
from colonnade.evaluation.plots import render_figure
from colonnade.runtime.images import MAX_PIXELS

MAX_WIDTH = 9.  # inches of panels side by side
AREA = 1.3  # square inches of a panel
MIN_SIDE, MAX_SIDE = 0.85, 2.6  # inches of a panel's sides
MIN_WIDTH = 4.5  # inches of a figure, for its title
LABEL_LENGTH = 15  # characters per line of a row's label
GAP, TITLE, HEAD, EDGE, LABEL, BAR = 0.08, 0.2, 0.36, 0.1, 0.3, 0.9  # inches
MAX_BAR = 2.5  # inches
QUANTILE = 0.995  # quantile of the values that colors span
DPI = 150
BLACK = -200  # lower end of gray values, which makes images pale beneath maps
OPACITY = 0.85  # opacity of the greatest values over an image


@dataclass(frozen=True)
class Scale:
    """Mapping from values to colors."""
    label: str  # quantity
    low: float  # value of the first color
    high: float  # value of the last color
    colors: str = 'magma'  # name of a colormap
    power: float = 1.  # exponent of the normalized values; 0.5 emphasizes small values
    is_transparent: bool = False  # whether low values are transparent, for maps over an image

    @classmethod
    def fit(cls,
            label: str,
            rows: Iterable[PanelRow],
            kind: Literal['from zero', 'range', 'diverging'] = 'from zero',
            power: float = 1.) -> Scale:
        """Return a scale for the values of panels except outliers.

        It starts at 0, is their range, or is symmetric around 0.
        """
        values = np.concatenate([panel.values.ravel() for _, panels in rows for panel in panels])
        if kind == 'range':
            low, high = np.quantile(values, (1 - QUANTILE, QUANTILE)).tolist()
            return cls(label, low, high if high > low else low + 1)
        high = float(np.quantile(np.abs(values), QUANTILE)) or 1.
        if kind == 'diverging':
            return cls(label, -high, high, 'coolwarm')
        return cls(label, 0., high, power=power)

    def build_mappable(self) -> ScalarMappable:
        """Return matplotlib's object that maps values to colors."""
        colors: Colormap = colormaps[self.colors]
        if self.is_transparent:
            table = colors(np.linspace(0, 1, 256))
            table[:, 3] = np.linspace(0, 1, 256)**0.5 * OPACITY
            colors = ListedColormap(table)
        return ScalarMappable(PowerNorm(self.power, self.low, self.high), colors)


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""
    values: np.ndarray  # (h, w), or colors (h, w, 3) from 0 to 1 or of uint8
    title: str = ''
    stride: float | None = None  # pixels of the image per value; None for matrices, not maps
    is_over_image: bool = False  # whether the gray image is visible below
    marks: tuple[tuple[float, float], ...] = ()  # points (x, y) in pixels of the image
    box: tuple[float, float, float, float] | None = None  # (x1, y1, x2, y2) in pixels of the image


#: label, and panels side by side, in as many lines as they need
PanelRow: TypeAlias = tuple[str, list[Panel]]


@dataclass(frozen=True)
class Drawing:
    """Content of a figure."""
    title: str
    image: np.ndarray  # the first panel, (H, W, 3), uint8
    rows: list[PanelRow]  # the other panels
    scale: Scale | None = None  # scale of all values that are not colors
    marks: tuple[tuple[float, float], ...] = ()  # points in the panel of the image
    interpolation: bool = True  # whether to interpolate maps bilinearly


class Grid:
    """Positions of panels: the image at the top left, rows of equal panels to its right.

    Attributes:
        lines: Label and panels of each line.
        size: Width and height of the figure in inches.
        end: Right edge of the panels in inches.
    """

    def __init__(self, drawing: Drawing) -> None:
        panels = [panel for _, row in drawing.rows for panel in row]
        ratio = 1.  # Matrices are square.
        if not panels or any(panel.stride for panel in panels):
            ratio = drawing.image.shape[1] / drawing.image.shape[0]
        self.width = min(max(math.sqrt(AREA * ratio), MIN_SIDE), MAX_SIDE)
        self.height = min(max(self.width / ratio, MIN_SIDE), MAX_SIDE)
        columns = max(2, int(MAX_WIDTH / (self.width + GAP)))
        self.lines: list[tuple[str, list[Panel]]] = []
        for label, row in drawing.rows:
            count = len(row)
            length = math.ceil(count / math.ceil(count / (columns - 1))) if count else 1
            for start in range(0, count, length):
                self.lines.append((label, row[start:start + length]))
        used = 1 + max((len(panels) for _, panels in self.lines), default=0)
        self.end = EDGE + LABEL + used * (self.width + GAP)
        bar = BAR if drawing.scale and self.lines else 0.
        height = HEAD + max(1, len(self.lines)) * (self.height + TITLE) + EDGE
        self.size = max(self.end + bar, MIN_WIDTH), height

    def add_panel(self, figure: Figure, column: int, line: int) -> Axes:
        """Add the axes of a panel; column 0 is the image."""
        x = EDGE + column * (self.width + GAP) + (LABEL if column else 0)
        y = HEAD + TITLE + line * (self.height + TITLE)
        return add_axes(figure, x, y, self.width, self.height)


def add_axes(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches from the figure's top left."""
    across, up = figure.get_size_inches()
    return figure.add_axes((x / across, 1 - (y + height) / up, width / across, height / up))


def build_figure(drawing: Drawing) -> Figure:
    """Return the figure, whose size depends on the number and shape of panels."""
    grid = Grid(drawing)
    figure = Figure(grid.size, dpi=DPI, facecolor='white')
    FigureCanvasAgg(figure)
    across, up = grid.size
    figure.text(EDGE / across, 1 - 0.2 / up, drawing.title, fontsize=9, va='center')
    image = Panel(drawing.image, 'image', stride=1., marks=drawing.marks)
    draw_panel(grid.add_panel(figure, 0, 0), image, drawing)
    for line, (label, panels) in enumerate(grid.lines):
        for column, panel in enumerate(panels):
            axes = grid.add_panel(figure, 1 + column, line)
            draw_panel(axes, panel, drawing)
            if not column:
                axes.text(-0.03, 0.5, textwrap.fill(label, LABEL_LENGTH), fontsize=7, rotation=90,
                          ha='right', va='center', multialignment='center',
                          transform=axes.transAxes)  # yapf: disable
    if drawing.scale and grid.lines:
        height = len(grid.lines) * (grid.height + TITLE) - TITLE
        axes = add_axes(figure, grid.end + GAP, HEAD + TITLE, 0.1, min(height, MAX_BAR))
        bar = figure.colorbar(drawing.scale.build_mappable(), cax=axes)
        bar.set_label(drawing.scale.label, fontsize=7)
        axes.tick_params(labelsize=6, length=2, pad=1.5)
        bar.outline.set_linewidth(0.4)
    return figure


def draw_panel(axes: Axes, panel: Panel, drawing: Drawing) -> None:
    """Draw a panel; values of maps are placed over the image, and padding is cut off."""
    axes.set_axis_off()
    axes.set_title(panel.title, fontsize=7, pad=2.5)
    height, width = drawing.image.shape[:2]
    if panel.is_over_image:
        gray = drawing.image.mean(axis=2)
        axes.imshow(gray, cmap='gray', vmin=BLACK, vmax=255, extent=(0, width, height, 0))
    style: dict = dict(interpolation='nearest')
    if panel.stride is not None:
        rows, columns = panel.values.shape[:2]
        style['extent'] = (0, columns * panel.stride, rows * panel.stride, 0)
        if drawing.interpolation:
            style['interpolation'] = 'bilinear'
    if panel.values.ndim == 2 and drawing.scale:
        colors = drawing.scale.build_mappable()
        style |= dict(cmap=colors.cmap, norm=colors.norm)
    axes.imshow(panel.values, **style)
    if panel.stride is not None:
        axes.set(xlim=(0, width), ylim=(height, 0))
    for edge, line in (('black', 1.8), ('white', 0.9)):  # visible on any background
        for x, y in panel.marks:
            axes.plot(x, y, 'o', markersize=5, markerfacecolor='none', markeredgecolor=edge,
                      markeredgewidth=line)  # yapf: disable
        if panel.box is not None:
            x1, y1, x2, y2 = panel.box
            axes.add_patch(
                Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=edge, linewidth=line))


def figure_to_bytes(figure: Figure, kind: str = 'png', dpi: int = DPI) -> bytes:
    """Return the content of a PNG file, or of a PDF with selectable text.

    Raises:
        ValueError: If a PNG would have too many pixels.
    """
    width, height = figure.get_size_inches()
    if kind == 'png' and width * height * dpi**2 > MAX_PIXELS:
        raise UserError(f'a figure of {width:.1f} x {height:.1f} inches at {dpi} dpi exceeds '
                        f'{MAX_PIXELS:,} pixels: choose a lower dpi')
    return render_figure(figure, kind, dpi=dpi)
