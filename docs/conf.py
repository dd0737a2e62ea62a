"""Sphinx: the pages of this folder and the docstrings, see ``make docs``."""
from __future__ import annotations

import ast
import os
import re
from argparse import BooleanOptionalAction
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import Field, fields
from importlib import import_module
from inspect import getclosurevars
from pathlib import Path
from textwrap import dedent
from typing import Any, get_type_hints

from sphinx.application import Sphinx

from colonnade.__main__ import COMMANDS
from colonnade.backbones.registry import BACKBONES
from colonnade.common.options import option_name
from colonnade.configs import list_configs
from colonnade.tools.command_line import KeyValues, settings_of_type

ROOT = Path(__file__).resolve().parent.parent

project = 'Colonnade'
author = copyright = 'The Colonnade authors'
html_theme = 'furo'
html_title = 'Colonnade'
html_theme_options = {
    'light_css_variables': {
        'color-brand-primary': '#1f5fbf',
        'color-brand-content': '#1f5fbf'
    },
    'dark_css_variables': {
        'color-brand-primary': '#8ab4f8',
        'color-brand-content': '#8ab4f8'
    },
}
smartquotes = False  # they turn the two dashes of options into one
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_heading_anchors = 3
exclude_patterns = ['_build', 'examples', 'notebooks']
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
    if settings.get('positional'):
        shown = [str(settings.get('metavar', field.name)).upper()]
    return ', '.join(f'`{each}`' for each in shown)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ['---'] * len(header), *rows]
    cells = ([str(cell).replace('|', r'\|').replace('\n', ' ') for cell in row] for row in lines)
    return '\n'.join(f'| {" | ".join(row)} |' for row in cells)


def tabulate_options(path: str, *names: str) -> str:
    """Return the table of the options of a dataclass, or of some of its fields.

    Args:
        path: Dotted name of the dataclass.
        *names: Fields to list. Defaults to all.
    """
    module, _, name = path.rpartition('.')
    return table_of_options(getattr(import_module(module), name), names)


def table_of_options(options: type, names: Collection[str] = ()) -> str:
    """Return the table of the options of a dataclass, arguments first."""
    hints, rows = get_type_hints(options), []
    for field in sorted(fields(options), key=lambda field: not field.metadata.get('positional')):
        if field.metadata and (field.name in names or not names):
            choices = ', '.join(map(str, field.metadata.get('choices', ())))
            text = field.metadata['help'] % dict(default=field.default, choices=choices)
            rows.append((format_option(field, hints[field.name]), text))
    return table(('option', 'description'), rows)


def list_commands() -> str:
    """Return a section for each command: its summary, usage and options."""
    sections = []
    for title, tools in COMMANDS.items():
        sections.append(f'## {title}')
        for tool in tools:
            module = import_module(f'colonnade.tools.{tool}')
            main = getattr(module, 'run', None) or module.main
            options = getclosurevars(main).nonlocals['options']
            summary, _, text = (module.__doc__ or '').partition('\n\n')
            example = dedent('\n'.join(re.findall(r'(?m)^    .*$', text)))
            sections.append(f'### {tool.replace("_", "-")}\n\n{summary}\n')
            if example:
                sections.append(f'```sh\n{example}\n```\n')
            if isinstance(options, type):
                sections.append(table_of_options(options))
                continue
            for action, each in options.items():
                sections.append(f'**{tool} {action}**: {(each.__doc__ or "").strip()}\n\n'
                                f'{table_of_options(each)}\n')
    return '\n\n'.join(sections)


def list_configs_by_head() -> str:
    """Return the table of the shipped configs: for each head, recipe and dataset its backbones."""
    found = defaultdict(list)
    for config in list_configs('*'):
        head, _, name = config.partition('/')
        parts = re.fullmatch(r'(\w+?)_((?:\d+ep|\d+k|3x|slim)_[a-z0-9]+)((?:_\w+)?)', name)
        assert parts is not None, config
        found[head, parts[2] + parts[3]].append(f'`{parts[1]}`')
    return table(('head', 'recipe', 'backbones'),
                 ((f'`{head}`', f'`{recipe}`', ', '.join(names))
                  for (head, recipe), names in sorted(found.items())))


def list_backbones() -> str:
    """Return the table of the backbones' architectures; plain ViTs have those of timm."""
    columns, rows = ('embed_dim', 'depth', 'num_heads', 'patch_size'), []
    for name, backbone in BACKBONES.items():
        if name == 'PlainViT':
            archs = sorted({each.partition('.')[0] for each in backbone.variants.rows})
            rows.append((f'`{name}`', f'{len(archs)} models of timm', '', '', '', ''))
            continue
        for arch, row in backbone.variants.rows.items():
            rows.append((f'`{name}`', f'`{arch}`', *(row.get(column, '') for column in columns)))
    return table(('class', 'arch', *columns), rows)


def list_checkpoint_formats() -> str:
    """Return the table of the formats of weights, and of what is dropped from their files."""
    import colonnade.backbones
    import colonnade.heads  # noqa: F401  these register them
    from colonnade.weights.formats import list_formats
    return table(('format', 'not loaded'), list_formats().items())


def list_fault_tests() -> str:
    """Return a table for each file of ``tests/faults``: its tests and what they check."""
    sections = []
    for path in sorted((ROOT / 'tests/faults').glob('test_*.py')):
        tree = ast.parse(path.read_text(encoding='utf-8'))
        tests = [
            node for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith('test_')
        ]
        summary = (ast.get_docstring(tree) or '').partition('\n\n')[0]
        rows = [(f'`{test.name}`', (ast.get_docstring(test) or '').partition('\n\n')[0])
                for test in tests]
        sections.append(f'**{path.name}**: {summary}\n\n{table(("test", "checks"), rows)}')
    return '\n\n'.join(sections)


#: blocks of pages that are replaced when the pages are built
GENERATED: dict[str, Callable[..., str]] = {
    'options': tabulate_options,
    'commands': list_commands,
    'configs': list_configs_by_head,
    'formats': list_checkpoint_formats,
    'backbones': list_backbones,
    'faults': list_fault_tests,
}


def generate_tables(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace each block ``{options} DATACLASS`` and its like by a table made from the code."""
    for name, generate in GENERATED.items():
        source[0] = re.sub(
            rf'(?ms)^```{{{name}}} ?(\S*)\n(.*?)^```$',
            lambda found, make=generate: make(*filter(None, (found[1], *found[2].split()))),
            source[0])


def link_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Include pages of the root, and make links to files outside of this folder downloads."""
    here = Path(app.srcdir, docname).parent
    outside = re.fullmatch(r'```{include} (.+)\n```\n', source[0])
    text = (here / outside[1]).read_text() if outside else source[0]

    def resolve(found: re.Match[str]) -> str:
        path, anchor = re.fullmatch(r'([^#]*)(.*)', found[2]).groups()  # type: ignore[union-attr]
        target = ((ROOT if outside else here) / path).resolve()
        if target.parent == ROOT and Path(app.srcdir, f'{target.stem.lower()}.md').exists():
            target = Path(app.srcdir, f'{target.stem.lower()}.md')
        relative = os.path.relpath(target, here)
        if target.is_relative_to(app.srcdir):
            return f'[{found[1]}]({relative}{anchor})'
        return f'{{download}}`{found[1]} <{relative}>`'

    source[0] = re.sub(
        r'(?<!!)\[([^]]+)\]\((?!\w+:|#)([\w./-]+\.(?:md|py|yml|yaml|sh)(?:#[\w-]+)?)\)', resolve,
        text)


def setup(app: Sphinx) -> None:
    app.connect('source-read', generate_tables)
    app.connect('source-read', link_files)
