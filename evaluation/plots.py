"""Plots: one style, no state of pyplot, the same bytes for the same content."""
from __future__ import annotations

import warnings
from io import BytesIO
from typing import Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: colors of Okabe and Ito, which color-blind people can distinguish
COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#666666', '#F0E442')
BLUE, ORANGE, GRAY = COLORS[0], COLORS[1], COLORS[6]
DPI = 96  # pixels of a page per inch


def new_figure(width: float = 6., height: float = 3.5) -> tuple[Figure, Axes]:
    """Return an empty plot in the common style.

    Args:
        width: Width in inches, at 96 pixels per inch.
        height: Height in inches.
    """
    figure = Figure((width, height), dpi=DPI, layout='constrained')
    axes = figure.subplots()
    axes.set_prop_cycle(color=COLORS)
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(True, color='#e5e5e5', linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GRAY, labelcolor='black')
    return figure, axes


def escape_math(text: str) -> str:
    """Return a text in which dollar signs do not start a formula."""
    return text.replace('$', r'\$')


def shorten_label(name: str, max_length: int) -> str:
    """Return a name on one line and of bounded length, for a plot."""
    text = ' '.join(name.split())
    return escape_math(text if len(text) <= max_length else f'{text[:max_length - 1]}…')


def render_figure(figure: Figure,
                  kind: str = 'svg',
                  *,
                  dpi: float | Literal['figure'] = 'figure',
                  text_as_paths: bool = False) -> bytes:
    """Return the content of an image file, for SVG without the time of creation.

    Args:
        figure: Figure to draw.
        kind: Format: ``'svg'``, ``'png'``, or ``'pdf'`` with text as text.
        dpi: Pixels per inch of a PNG. Defaults to that of the figure.
        text_as_paths: Whether an SVG has outlines of letters. By default, texts are in a font of
            the reader, because those of matplotlib lack many scripts. It reserves 1.1 em for each
            letter that they lack.
    """
    content = BytesIO()
    with warnings.catch_warnings(), rc_context({
            'svg.hashsalt': 'colonnade', 'svg.fonttype': 'path' if text_as_paths else 'none',
            'pdf.fonttype': 42}):  # yapf: disable
        warnings.filterwarnings('ignore', 'Glyph .* missing from font')
        figure.savefig(
            content, format=kind, dpi=dpi, metadata={'Date': None} if kind == 'svg' else None)
    return content.getvalue()
