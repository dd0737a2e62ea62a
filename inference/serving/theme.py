"""How the page looks: its style, its heading, its tables."""
from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from .. import LabelMap
from ..results import Result

MOST_ROWS = 100
LOGO = ('<svg viewBox="0 0 32 32" width="32" height="32" aria-hidden="true" fill="currentColor">'
        '<path d="M16 2 30 9H2zM3 26h26v3H3z"/>'
        '<path d="M5 11h4v13H5zM14 11h4v13h-4zM23 11h4v13h-4z"/></svg>')
FONT = ('system-ui', '-apple-system', 'Segoe UI', 'Roboto', 'Noto Sans', 'DejaVu Sans',
        'sans-serif')
MONO = ('ui-monospace', 'Consolas', 'DejaVu Sans Mono', 'monospace')
STYLE = """
.gradio-container { width: 100% !important; max-width: 1240px !important;
    margin: 0 auto !important; }
.dark .gradio-container { --color-accent: var(--primary-400); }
#heading { display: flex; gap: .75rem; align-items: center; }
#heading * { color: var(--color-accent); }
#heading h1 { margin: 0; font-size: 1.6rem; font-weight: 650; }
#model { margin-top: .25rem; font-size: .9rem; }
#model, #model summary { color: var(--body-text-color-subdued); }
#model summary { cursor: pointer; }
.status { font-size: .85rem; }
.status [role=status] { color: var(--body-text-color-subdued); }
.status [role=alert] { color: #8f1d1d; background: #fdecec; border-left: 4px solid #c93535;
    padding: .6rem .8rem; border-radius: 4px; font-size: .95rem; }
#drawing .icon-button-wrapper, #picture .icon-button-wrapper { position: sticky; right: 0;
    width: fit-content; margin: 0 0 0 auto; }
#picture { overflow-x: auto !important; }
#picture .image-container:has(img) { min-width: 45rem; }
#drawing button:has(img), #picture button:has(img), .image-frame { width: 100% !important; }
#drawing img, #picture img { width: 100% !important; max-height: 75vh !important;
    object-fit: contain !important; }
.prose .found { border: 0; width: 100%; border-collapse: collapse; font-size: .9rem; }
.prose .found tr { border: 0; }
.prose .found th, .prose .found td { text-align: left; padding: .3rem .6rem; border: 0;
    border-bottom: 1px solid var(--border-color-primary); }
.prose .found .number { text-align: right; font-variant-numeric: tabular-nums; }
.prose .found td { white-space: nowrap; }
.found .colour { display: inline-block; width: .8em; height: .8em; margin-right: .5em;
    border: 1px solid #0005; border-radius: 2px; vertical-align: -.05em; }
#table { max-height: 26rem; overflow: auto; }
.found thead th { position: sticky; top: 0; background: var(--body-background-fill); }
.found caption { text-align: left; padding: .25rem 0; color: var(--body-text-color-subdued); }
"""
ICON = (
    '<link rel="icon" href="data:image/svg+xml,' +
    LOGO.replace('currentColor', '%231f6f78').replace('"', "'").replace(
        '<svg', "<svg xmlns='http://www.w3.org/2000/svg'").replace('<', '%3C').replace('>', '%3E') +
    '">')


def heading(about: dict[str, Any]) -> str:
    """The project's name, and what the model is.

    Args:
        about: See :func:`.describe`.
    """
    trunk = ' '.join(filter(None, (about['trunk'], about['arch'])))
    facts = (f'{about["model"]} on {trunk}', f'{about["parameters"] / 1e6:.1f} M parameters',
             f'weights {about["weights"]}', about['device'])
    names = ', '.join(map(escape, about['classes']))
    return (f'<div id="heading">{LOGO}<h1>Colonnade</h1></div>'
            f'<div id="model">{" · ".join(map(escape, facts))}'
            f'<details><summary>{len(about["classes"])} classes</summary>{names}</details></div>')


def alert(text: str) -> str:
    """An error, as the page shows it and screen readers say it."""
    return f'<div role="alert">{escape(text)}</div>'


def times(**seconds: float) -> str:
    """How long each step took."""
    steps = (f'{name} {value * 1000:.0f} ms' for name, value in seconds.items())
    return f'<div role="status">{" · ".join(steps)}</div>'


def table_of(result: Result, threshold: float) -> str:
    """What was found, as a table."""
    colours = dict(zip(result.classes, result.palette, strict=True))
    if isinstance(result, LabelMap):
        shares = [(name, f'{share:.1%}') for name, share in result.shares().items()]
        return table(('class', 'share of the pixels'), shares, colours, '')
    shown = result.above(threshold)
    rows = []
    for name, score, box in zip(shown.names, shown.scores, shown.boxes, strict=True):
        rows.append((name, f'{score:.2f}', ', '.join(f'{value:.0f}' for value in box)))
    caption = f'{len(shown)} of {len(result)} instances reach the threshold'
    if len(rows) > MOST_ROWS:
        caption += f'; the first {MOST_ROWS} are listed'
    return table(('class', 'score', 'left, top, right, bottom'), rows[:MOST_ROWS], colours, caption)


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], colours: dict[str, Any],
          caption: str) -> str:
    """Rows that begin with a class, each beside its colour."""
    lines = []
    for name, *values in rows:
        colour = '#%02x%02x%02x' % tuple(colours[name])
        cells = ''.join(f'<td class="number">{value}</td>' for value in values)
        lines.append(f'<tr><td><span class="colour" style="background: {colour}"></span>'
                     f'{escape(name)}</td>{cells}</tr>')
    first, *others = heads
    titles = f'<th>{first}</th>' + ''.join(f'<th class="number">{name}</th>' for name in others)
    return (f'<table class="found"><caption>{caption}</caption><thead><tr>{titles}</tr></thead>'
            f'<tbody>{"".join(lines)}</tbody></table>')
