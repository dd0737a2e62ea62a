"""A page of HTML in one file: tables, pictures and commands."""
from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import jinja2
from PIL import Image

from ..atomic import write_text

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
table { border-collapse: collapse; }
td { padding: .2rem 1.5rem .2rem 0; border-bottom: 1px solid #eee; }
td + td { text-align: right; font-variant-numeric: tabular-nums; }
figure { display: inline-block; margin: .75rem .75rem 0 0; }
figure img { max-width: 100%; }
figcaption { color: #666; font-size: .85rem; }
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
<h2>{{ section.title }}</h2>
{% if section.rows %}
<table>
{% for name, value in section.rows %}
<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}
</table>
{% endif %}
{% if section.legend %}
<p>{% for name, colour in section.legend %}
<span class="name"><span class="key" style="background: rgb{{ colour }}"></span>{{ name }}</span>
{% endfor %}</p>
{% endif %}
{% for name, picture in section.pictures %}
<figure><img src="{{ address(picture) }}" width="{{ picture.width }}" alt="{{ name }}">
<figcaption>{{ name }}</figcaption></figure>
{% endfor %}
{% if section.commands %}
<pre>{{ section.commands | join('\n') }}</pre>
{% endif %}
{% endfor %}
</body>
</html>
"""


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        rows: Names and values of a table.
        legend: Names and colours.
        pictures: Captions and pictures.
        commands: Lines to type.
    """
    title: str
    rows: Sequence[tuple[str, str]] = ()
    legend: Sequence[tuple[str, tuple[int, int, int]]] = ()
    pictures: Sequence[tuple[str, Image.Image]] = ()
    commands: Sequence[str] = ()


def address(picture: Image.Image) -> str:
    """A picture as an address that holds it."""
    content = BytesIO()
    picture.save(content, 'PNG', optimize=True)
    return 'data:image/png;base64,' + base64.b64encode(content.getvalue()).decode()


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
    write_text(path, page.render(title=title, about=about, sections=sections, address=address))
