"""Plots of pages: one style, no state of pyplot, the same bytes for the same content."""
from __future__ import annotations

import warnings
from io import BytesIO

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

#: of Okabe and Ito, which colour-blind people tell apart
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#666666', '#F0E442')
GREY = '#666666'
DPI = 96  # pixels of a page per inch


def figure(width: float = 6., height: float = 3.5) -> tuple[Figure, Axes]:
    """An empty plot in the pages' style.

    Args:
        width, height: Inches, of which one has 96 pixels.
    """
    drawn = Figure((width, height), dpi=DPI, layout='constrained')
    FigureCanvasSVG(drawn)
    axes = drawn.subplots()
    axes.set_prop_cycle(color=COLOURS)
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(True, color='#e5e5e5', linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelcolor='black')
    return drawn, axes


def plain(text: str) -> str:
    """A name for a plot: a dollar in it begins no formula."""
    return text.replace('$', r'\$')


def svg(drawn: Figure) -> bytes:
    """A plot as an SVG image without its time of making.

    Its texts are texts, in fonts of the reader: matplotlib's own lack many scripts. Where they do,
    it reserves 1.1 em a letter.
    """
    content = BytesIO()
    with rc_context({'svg.hashsalt': 'colonnade', 'svg.fonttype': 'none'}), \
            warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph .* missing from font')
        drawn.savefig(content, format='svg', metadata={'Date': None})
    return content.getvalue()
