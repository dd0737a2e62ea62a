"""A page of HTML in one file. Its layout is in ``page.html``."""
from __future__ import annotations

import base64
import logging
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
MAX_TILES = 6  # in a row
MAX_TEXT_WIDTH, MAX_TEXT_ROWS = 40, 40  # letters of a column and rows of a table in a terminal


@dataclass(frozen=True)
class Table:
    """Rows of values, for a page or a terminal.

    Attributes:
        header: Names of the columns; empty for a table without a heading.
        rows: A cell for each column; numbers are shown with four digits, None as a dash.
        caption: A sentence above it.
    """
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ''

    def is_number(self, column: int) -> bool:
        """Return True if a column has no text."""
        return not any(isinstance(row[column], str) for row in self.rows)

    def format_text(self) -> str:
        """Return the first rows as aligned text."""
        rows = [[format_cell(cell) for cell in row] for row in self.rows[:MAX_TEXT_ROWS]]
        cells = [[cut_front(key), *map(cut_end, row)] for key, *row in (self.header, *rows)]
        numbers = [index for index in range(len(self.header)) if self.is_number(index)]
        lines = format_columns(cells, numbers)
        if len(self.rows) > MAX_TEXT_ROWS:
            lines.append(f'and {len(self.rows) - MAX_TEXT_ROWS} more')
        return '\n'.join(filter(None, (self.caption, *lines)))


@dataclass(frozen=True)
class Section:
    """A section of a page, in the order of its content.

    Attributes:
        title: Heading.
        text: Paragraph below the heading.
        plots: Captions and plots, see :func:`~colonnade.evaluation.plots.new_figure`.
        tables: Tables.
        legend: Names and colors.
        images: Captions and images.
        tiles: Captions, each with the titled images that belong together.
        commands: Lines to type.
        folded: Whether only the heading is visible until it is clicked.
    """
    title: str
    text: str = ''
    plots: Sequence[tuple[str, Figure]] = ()
    tables: Sequence[Table] = ()
    legend: Sequence[tuple[str, Color]] = ()
    images: Sequence[tuple[str, Image.Image]] = ()
    tiles: Sequence[tuple[str, Sequence[tuple[str, Image.Image]]]] = ()
    commands: Sequence[str] = ()
    folded: bool = False


Subject = TypeVar('Subject')
#: title -> function that builds the sections of this part of a page; none if there is nothing to
#: show
SectionTable: TypeAlias = Mapping[str, Callable[[Subject], Sequence[Section]]]


def build_sections(table: SectionTable[Subject], subject: Subject) -> list[Section]:
    """Return the sections of a page. One that cannot be built says why, and costs no other.

    Args:
        table: Parts of the page in their order.
        subject: What the page is about.
    """
    sections: list[Section] = []
    for title, build in table.items():
        try:
            sections += build(subject)
        except Exception as error:  # a record may be damaged anywhere
            text = f'This part cannot be made: {type(error).__name__}: {error}'
            print_log(f'{title}: {text}', logger='current', level=logging.WARNING)
            sections.append(Section(title, text))
    return sections


def write_page(path: Path, title: str, about: str, sections: Sequence[Section]) -> None:
    """Write a page that needs no other file and no network.

    Args:
        path: File to write, atomically.
        title: Heading.
        about: Sentence below it.
        sections: Sections in their order.

    Raises:
        OSError: If the file cannot be written.
    """
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    page = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    functions = (count_columns, encode_image, encode_plot, format_cell)
    page.globals.update({function.__name__: function for function in functions}, dpi=DPI)
    text = page.get_template('page.html').render(title=title, about=about, sections=sections)
    write_text(path, text)


def count_columns(num_tiles: int) -> int:
    """Return the number of tiles in a row with which all rows are about equally full."""
    return -(-num_tiles // -(-num_tiles // MAX_TILES))


def encode_image(image: Image.Image) -> str:
    """Return a data URL of an image: PNG of a drawing, JPEG of a photograph."""
    content = BytesIO()
    if image.getcolors(MAX_DRAWING_COLORS) is None:
        image.convert('RGB').save(content, 'JPEG', quality=JPEG_QUALITY, optimize=True)
        return encode_data('jpeg', content.getvalue())
    image.save(content, 'PNG', optimize=True)
    return encode_data('png', content.getvalue())


def encode_plot(plot: Figure) -> str:
    """Return a data URL of a plot."""
    return encode_data('svg+xml', render_figure(plot))


def encode_data(kind: str, content: bytes) -> str:
    """Return a data URL of an image file."""
    return f'data:image/{kind};base64,{base64.b64encode(content).decode()}'


def format_cell(cell: Cell) -> str:
    """Return the text of a cell."""
    if cell is None or cell != cell:  # NaN is not equal to itself
        return '–'
    return f'{cell:.4g}' if isinstance(cell, float) else str(cell)


def cut_end(text: str) -> str:
    """Return a text on one line and of bounded length."""
    text = printable(' '.join(text.split()))
    return text if len(text) <= MAX_TEXT_WIDTH else f'{text[:MAX_TEXT_WIDTH - 1]}…'


def cut_front(text: str) -> str:
    """Return the end of a key on one line; keys share their beginning."""
    text = printable(' '.join(text.split()))
    return text if len(text) <= MAX_TEXT_WIDTH else f'…{text[1 - MAX_TEXT_WIDTH:]}'
