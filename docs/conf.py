"""Sphinx: the pages of this folder and the docstrings, see ``make docs``."""
from __future__ import annotations

import re
from argparse import BooleanOptionalAction
from collections.abc import Iterator
from dataclasses import Field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from sphinx.application import Sphinx

from colonnade.common.options import option_name
from colonnade.tools.command_line import KeyValues, settings_of_type

project = 'Colonnade'
author = 'The Colonnade authors'
html_theme = 'furo'
html_title = 'Colonnade'
smartquotes = False  # they turn the two dashes of options into one
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_heading_anchors = 3
exclude_patterns = ['_build']
autodoc_typehints = 'none'  # signatures show them
napoleon_use_ivar = True  # else attributes of dataclasses are described twice
autodoc_member_order = 'bysource'
autodoc_default_options = {'members': True, 'show-inheritance': True}
add_module_names = False
templates_path: list[str] = []
# Names of other packages, and of ours that no page lists, have no page to link.
nitpick_ignore_regex = [(r'py:.*', r'(?!colonnade\.(backbones|heads|necks|weights)\.\w+$).*')]


def format_option(field: Field, annotation: Any) -> str:
    """Return an option as its command shows it, with its values: ``--split {train,val,test}``."""
    settings = settings_of_type(annotation, field.default) | dict(field.metadata)
    names = [option_name(field)]
    if settings.get('action') is BooleanOptionalAction:
        names.append(names[0].replace('--', '--no-', 1))
    values = settings.get('metavar', field.name.upper())
    if 'choices' in settings:
        values = '{%s}' % ','.join(map(str, settings['choices']))
    elif isinstance(values, tuple):
        values = ' '.join(values)
    if 'action' in settings and settings['action'] is not KeyValues:
        values = ''
    shown = [f'{name} {values}'.rstrip() for name in names]
    for name, other in settings.get('also', {}).items():
        shown.append(f'{name} {{{",".join(other["choices"])}}}' if 'choices' in other else name)
    return ', '.join(f'`{each}`' for each in shown)


def option_rows(path: str, names: list[str]) -> Iterator[str]:
    """Rows of a table of options, of some or of all.

    Args:
        path: The dataclass that declares them.
        names: Of its fields.
    """
    module, name = path.rsplit('.', 1)
    options = getattr(import_module(module), name)
    hints = get_type_hints(options)
    yield '| option | what it does |\n| --- | --- |'
    for field in fields(options):
        if not field.metadata or field.metadata.get('positional') or \
                names and field.name not in names:
            continue
        choices = ', '.join(map(str, field.metadata.get('choices', ())))
        text = field.metadata['help'] % dict(default=field.default, choices=choices)
        yield f'| {format_option(field, hints[field.name])} | {text} |'


def tabulate_options(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace each block ``{options} DATACLASS`` by the table of its options."""
    source[0] = re.sub(r'(?ms)^```{options} (\S+)\n(.*?)^```$',
                       lambda found: '\n'.join(option_rows(found[1], found[2].split())), source[0])


def link_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Include pages of the root; links to other files, which GitHub shows, download them."""
    outside = re.fullmatch(r'```{include} (.+)\n```\n', source[0])
    text = Path(app.srcdir, outside[1]).read_text() if outside else source[0]
    if outside:  # its links start one folder higher
        text = re.sub(r'\]\((?!\w+:)([^)]+)\)', r'](../\1)', text).replace('](../docs/', '](')
    for name in ('CONTRIBUTING', 'CHANGELOG', 'SECURITY'):
        text = text.replace(f'](../{name}.md)', f']({name.lower()}.md)')
    source[0] = re.sub(r'\[([^]]+)\]\((\.\./[\w/]+\.md)\)', r'{download}`\1 <\2>`', text)


def setup(app: Sphinx) -> None:
    app.connect('source-read', tabulate_options)
    app.connect('source-read', link_files)
