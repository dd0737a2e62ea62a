"""A page of HTML in one file: tables, pictures and commands."""
from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import jinja2
from matplotlib.figure import Figure
from PIL import Image

from colonnade.common.atomic_files import write_text
from colonnade.common.plots import DPI, render_figure

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1.5rem; }
.table { overflow-x: auto; margin: 1rem 0;  /* a shadow at the right says that there is more */
         background: linear-gradient(to left, #fff 1rem, #fff0) right / 3rem 100% no-repeat local,
                     linear-gradient(to left, #0005, #0000) right / 1rem 100% no-repeat scroll; }
table { border-collapse: collapse; }
caption { text-align: left; color: #555; font-size: .85rem; padding-bottom: .3rem; }
th, td { padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #eee; text-align: left;
         vertical-align: top; }
th { font-weight: 600; border-bottom-color: #999; }
td { overflow-wrap: anywhere; min-width: 6rem; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
          min-width: 0; }
th.number { white-space: normal; }
figure { display: inline-block; margin: .75rem .75rem 0 0; max-width: 100%; vertical-align: top; }
figure img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .85rem; overflow-wrap: anywhere; }
h1, h2, p, summary, th { overflow-wrap: break-word; }
.tiles { display: inline-block; vertical-align: top; max-width: 100%; margin: 0 1rem 1rem 0; }
.tiles p { width: 0; min-width: 100%; margin: .5rem 0; overflow-wrap: anywhere; }
.tiles div { display: grid; gap: .5rem;
             grid-template-columns: repeat(var(--columns), minmax(0, 17rem)); }
.tiles figure { margin: 0; }
@media (max-width: 50rem) {
  .tiles { display: block; margin-right: 0; }
  .tiles div { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); } }
summary { cursor: pointer; font-size: 1.5em; font-weight: bold; margin-top: 2.5rem;
          border-top: 1px solid #ddd; padding-top: 1.5rem; }
pre { background: #f5f5f5; padding: .75rem 1rem; overflow-x: auto; }
.name { display: inline-block; margin-right: 1em; }
.key { display: inline-block; width: .8em; height: .8em; border: 1px solid #888;
       margin-right: .3em; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ about }}</p>
{% for section in sections %}
{% if section.folded %}
<details><summary>{{ section.title }}</summary>
{% else %}
<h2>{{ section.title }}</h2>
{% endif %}
{% if section.text %}
<p>{{ section.text }}</p>
{% endif %}
{% if section.rows %}
<div class="table"><table class="values">
{% for name, value in section.rows %}
<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}
</table></div>
{% endif %}
{% for caption, plot in section.plots %}
<figure style="width: {{ (plot.get_figwidth() * dpi) | int }}px">
<img src="{{ address_of_plot(plot) }}" alt="{{ caption }}">
<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
{% for table in section.tables %}
<div class="table"><table>
{% if table.caption %}
<caption>{{ table.caption }}</caption>
{% endif %}
<thead><tr>
{% for name in table.header %}
<th scope="col"{{ ' class=number' if table.is_number(loop.index0) }}>{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>{% for cell in row %}
<td{{ ' class=number' if table.is_number(loop.index0) }}>{{ shown(cell) }}</td>
{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
{% if section.legend %}
<p>{% for name, colour in section.legend %}
<span class="name"><span class="key" style="background: rgb{{ colour }}"></span>{{ name }}</span>
{% endfor %}</p>
{% endif %}
{% for name, picture in section.pictures %}
<figure style="width: {{ [picture.width, 240] | max }}px">
<img src="{{ address(picture) }}" width="{{ picture.width }}" alt="{{ name }}">
<figcaption>{{ name }}</figcaption></figure>
{% endfor %}
{% for name, tiles in section.tiles %}
<div class="tiles"><p>{{ name }}</p><div style="--columns: {{ columns(tiles | length) }}">
{% for title, picture in tiles %}
<figure><figcaption>{{ title }}</figcaption>
<img src="{{ address(picture) }}" width="{{ picture.width }}" alt="{{ title }}"></figure>
{% endfor %}
</div></div>
{% endfor %}
{% if section.commands %}
<pre>{{ section.commands | join('\n') }}</pre>
{% endif %}
{% if section.folded %}
</details>
{% endif %}
{% endfor %}
</body>
</html>
"""

Cell = str | int | float | None
MOST_COLOURS = 4096  # of a drawing; what has more is a photograph
QUALITY = 90  # of photographs
MOST_COLUMNS = 6  # of tiles


@dataclass(frozen=True)
class Table:
    """Values under headings.

    Attributes:
        header: Names of the columns.
        rows: A cell for each column; numbers are shown with four digits, None as a dash.
        caption: A sentence above it.
    """
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ''

    def is_number(self, column: int) -> bool:
        """Whether a column holds no text."""
        return not any(isinstance(row[column], str) for row in self.rows)


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        rows: Names and values of a table.
        legend: Names and colours.
        pictures: Captions and pictures.
        commands: Lines to type.
        text: A paragraph beneath the heading.
        plots: Captions and plots, see :func:`~colonnade.common.plots.new_figure`.
        tables: Tables of several columns.
        folded: Whether the heading alone is seen until it is clicked.
        tiles: Captions, each with the titled pictures that belong together.
    """
    title: str
    rows: Sequence[tuple[str, str]] = ()
    legend: Sequence[tuple[str, tuple[int, int, int]]] = ()
    pictures: Sequence[tuple[str, Image.Image]] = ()
    commands: Sequence[str] = ()
    text: str = ''
    plots: Sequence[tuple[str, Figure]] = ()
    tables: Sequence[Table] = ()
    folded: bool = False
    tiles: Sequence[tuple[str, Sequence[tuple[str, Image.Image]]]] = ()


def columns(number: int) -> int:
    """Of how many tiles a row is, so that all rows are about as full."""
    return -(-number // -(-number // MOST_COLUMNS))


def address(picture: Image.Image) -> str:
    """A picture as an address that holds it: a drawing as PNG, a photograph as JPEG."""
    content = BytesIO()
    if picture.getcolors(MOST_COLOURS) is None:
        picture.convert('RGB').save(content, 'JPEG', quality=QUALITY, optimize=True)
        return data_address('jpeg', content.getvalue())
    picture.save(content, 'PNG', optimize=True)
    return data_address('png', content.getvalue())


def address_of_plot(plot: Figure) -> str:
    """A plot as an address that holds it."""
    return data_address('svg+xml', render_figure(plot))


def data_address(kind: str, content: bytes) -> str:
    """An image's bytes as an address."""
    return f'data:image/{kind};base64,{base64.b64encode(content).decode()}'


def shown(cell: Cell) -> str:
    """A cell's text."""
    if cell is None or cell != cell:  # NaN is not equal to itself
        return '–'
    return f'{cell:.4g}' if isinstance(cell, float) else str(cell)


def write_page(path: Path, title: str, about: str, sections: Sequence[Section]) -> None:
    """Write a page that needs no other file and no network.

    Args:
        path: File to write, whole or not at all.
        title: Its heading.
        about: A sentence beneath it.
        sections: In order.

    Raises:
        OSError: If it cannot be written.
    """
    page = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE)
    write_text(
        path,
        page.render(
            title=title,
            about=about,
            sections=sections,
            address=address,
            address_of_plot=address_of_plot,
            columns=columns,
            shown=shown,
            dpi=DPI))
