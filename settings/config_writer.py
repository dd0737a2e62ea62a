"""Config files as text: values, comments and the config that they start from."""
from __future__ import annotations

import keyword
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from yapf.yapflib.yapf_api import FormatCode

from colonnade.common.errors import UserError
from colonnade.runtime.sanitize import printable

YAPF = '{based_on_style: pep8, column_limit: 100, ' \
       'split_before_expression_after_opening_paren: true}'
REPLACED = '{{'  # begins what mmengine replaces in the text of a config, also in comments


class Source(str):
    """Source of Python, written as it is."""
    __repr__ = str.__str__


def base_path(base: Path, out: Path) -> str:
    """How a config names its base: from its own folder on where both may move together."""
    base, folder = Path(os.path.realpath(base)), Path(os.path.realpath(out)).parent
    together = Path.cwd(), base.parent.parent  # a project, or the configs
    if any(base.is_relative_to(top) and folder.is_relative_to(top) for top in together):
        return os.path.relpath(base, folder)
    return str(base)


def python_source(value: Any) -> str:
    """A value as configs write it.

    Raises:
        ValueError: If a text holds what mmengine replaces before it runs the file: names of classes
            and files are data, and could bring code into it.
    """
    if isinstance(value, str) and not isinstance(value, Source) and REPLACED in value:
        raise UserError(f'{value!r} holds {REPLACED}, which mmengine replaces in configs: give it '
                        'another name')
    if isinstance(value, dict):
        if all(str(key).isidentifier() and not keyword.iskeyword(key) for key in value):
            return f'dict({", ".join(f"{key}={python_source(value[key])}" for key in value)})'
        items = (f'{python_source(key)}: {python_source(value[key])}' for key in value)
        return f'{{{", ".join(items)}}}'
    if isinstance(value, list):
        return f'[{", ".join(map(python_source, value))}]'
    if isinstance(value, tuple):
        return f'({", ".join(map(python_source, value))}{"," if len(value) == 1 else ""})'
    return repr(value)


def comment_lines(comments: Sequence[str]) -> Iterator[str]:
    """Comments of a config, each from a line of its own on."""
    for comment in comments:
        plain = printable(comment).replace(REPLACED, '{ {')
        yield from textwrap.wrap(plain, 98, initial_indent='# ', subsequent_indent='#   ')


def laid_out(head: Sequence[str],
             content: Mapping[str, Any],
             comments: Mapping[str, Sequence[str]] | None = None) -> str:
    """A config file.

    Args:
        head: Its first lines.
        content: What it sets.
        comments: On settings of ``content``, above them.
    """
    lines = list(head)
    for key, value in content.items():
        lines += comment_lines((comments or {}).get(key, ()))
        lines.append(f'{key} = {python_source(value)}')
    return FormatCode('\n'.join(lines) + '\n', style_config=YAPF)[0]
