"""Sphinx: the pages of this folder and the docstrings, see ``make docs``."""
from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

project = 'Colonnade'
author = 'The Colonnade authors'
html_theme = 'furo'
html_title = 'Colonnade'
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
    app.connect('source-read', link_files)
