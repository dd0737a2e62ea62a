"""HTML pages in one file, from sections of text, tables, plots and images; see ``page.html``."""
from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeAlias, TypeVar

import jinja2
from matplotlib.figure import Figure
from mmengine.logging import print_log
from PIL import Image

from colonnade.common.atomic_files import write_text
from colonnade.evaluation.plots import DPI, render_figure
from colonnade.evaluation.text_tables import format_columns
from colonnade.runtime.sanitize import printable

Cell = str | int | float | None
Color = tuple[int, int, int]
MAX_DRAWING_COLORS = 4096  # images with more colors are stored as JPEG
JPEG_QUALITY = 90
MAX_TILES = 6  # images in a row
MAX_TEXT_WIDTH, MAX_TEXT_ROWS = 40, 40  # limits of a table in a terminal


@dataclass(frozen=True)
class Table:
    """Table for a page or a terminal."""
    header: Sequence[str]  # column names; empty for a table without a header
    # Floats are shown with four digits, None and NaN as a dash.
    rows: Sequence[Sequence[Cell]]
    caption: str = ''  # sentence above the table

    def is_number(self, column: int) -> bool:
        """Return True if a column contains no strings."""
        return not any(isinstance(row[column], str) for row in self.rows)

    def format_text(self) -> str:
        """Return the first rows as aligned text."""
        rows = [[format_cell(cell) for cell in row] for row in self.rows[:MAX_TEXT_ROWS]]
        cells = [[shorten_cell(key, keep_end=True), *map(shorten_cell, row)]
                 for key, *row in (self.header, *rows)]  # yapf: disable
        lines = format_columns(cells, list(filter(self.is_number, range(len(self.header)))))
        if len(self.rows) > MAX_TEXT_ROWS:
            lines.append(f'and {len(self.rows) - MAX_TEXT_ROWS} more')
        return '\n'.join(filter(None, (self.caption, *lines)))


def tabulate_facts(columns: Mapping[str, Mapping[str, Cell]], missing: Cell = None) -> Table:
    """Return a table of facts by column and name, in the order in which names first occur."""
    names = dict.fromkeys(name for facts in columns.values() for name in facts)
    rows = [[name, *(facts.get(name, missing) for facts in columns.values())] for name in names]
    return Table(['', *columns], rows)


@dataclass(frozen=True)
class Section:
    """Section of a page, with its content from top to bottom."""
    title: str  # heading
    text: str = ''  # paragraph below the heading
    plots: Sequence[tuple[str, Figure]] = ()  # captions and plots, see new_figure
    tables: Sequence[Table] = ()  # tables
    legend: Sequence[tuple[str, Color]] = ()  # names and colors
    images: Sequence[tuple[str, Image.Image]] = ()  # captions and images
    # Each group has a caption and titled images.
    tiles: Sequence[tuple[str, Sequence[tuple[str, Image.Image]]]] = ()
    commands: Sequence[str] = ()  # preformatted lines, such as commands to run
    folded: bool = False  # whether to show only the heading until it is clicked


Subject = TypeVar('Subject')
#: Title of a part of a page -> function that returns its sections.
SectionTable: TypeAlias = Mapping[str, Callable[[Subject], Sequence[Section]]]


def build_sections(table: SectionTable[Subject], subject: Subject) -> list[Section]:
    """Return all sections of a page; a part that fails becomes a section with the error."""
    sections: list[Section] = []
    for title, build in table.items():
        try:
            sections += build(subject)
        except Exception as error:  # A damaged record can raise anything; keep the other parts.
            text = f'This part cannot be built: {type(error).__name__}: {error}'
            print_log(f'{title}: {text}', logger='current', level=logging.WARNING)
            sections.append(Section(title, text))
    return sections


def write_page(path: Path, title: str, about: str, sections: Sequence[Section]) -> None:
    """Write a self-contained page atomically.

    Args:
        path: Output file.
        title: Heading of the page.
        about: Sentence below the heading.
        sections: Sections from top to bottom.

    Raises:
        OSError: If the file cannot be written.
    """
    write_text(path, load_template('page.html').render(title=title, about=about, sections=sections))


def render_sections(sections: Sequence[Section]) -> str:
    """Return sections as HTML for a notebook, whose style they keep."""
    content = load_template('sections.html').render(sections=sections)
    style = '.colonnade figure { display: inline-block; max-width: 100%; margin: .5rem 1rem 0 0; }'
    return f'<div class="colonnade"><style>{style}</style>{content}</div>'


def load_template(name: str) -> jinja2.Template:
    """Return a template in this folder."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    page = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    functions = (count_columns, encode_image, encode_plot, format_cell)
    page.globals.update({function.__name__: function for function in functions}, dpi=DPI)
    return page.get_template(name)


def count_columns(num_tiles: int) -> int:
    """Return the number of tiles per row that fills all rows about equally."""
    return -(-num_tiles // -(-num_tiles // MAX_TILES))


def encode_image(image: Image.Image) -> str:
    """Return the data URL of an image: PNG for drawings, JPEG for photographs."""
    content = BytesIO()
    if image.getcolors(MAX_DRAWING_COLORS) is not None:
        image.save(content, 'PNG', optimize=True)
        return f'data:image/png;base64,{b64encode(content.getvalue()).decode()}'
    image.convert('RGB').save(content, 'JPEG', quality=JPEG_QUALITY, optimize=True)
    return f'data:image/jpeg;base64,{b64encode(content.getvalue()).decode()}'


def encode_plot(plot: Figure) -> str:
    """Return the data URL of a plot, as SVG."""
    return f'data:image/svg+xml;base64,{b64encode(render_figure(plot)).decode()}'


def format_cell(cell: Cell) -> str:
    """Return the text of a cell."""
    if cell is None or cell != cell:  # NaN is not equal to itself.
        return '–'
    return f'{cell:.4g}' if isinstance(cell, float) else str(cell)


def shorten_cell(text: str, *, keep_end: bool = False) -> str:
    """Return text on one line of bounded length; metric and config keys differ at their end."""
    text = printable(' '.join(text.split()))
    if len(text) <= MAX_TEXT_WIDTH:
        return text
    return f'…{text[1 - MAX_TEXT_WIDTH:]}' if keep_end else f'{text[:MAX_TEXT_WIDTH - 1]}…'
