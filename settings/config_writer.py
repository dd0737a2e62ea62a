"""Config files as Python source: values, comments and the base config."""
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
REPLACED = '{{'  # start of a mmengine placeholder, which is replaced in comments too


class Source(str):
    """Python source that is written unchanged."""
    __repr__ = str.__str__


def format_base_path(base: Path, out: Path) -> str:
    """Return the value of ``_base_``: relative if config and base can be moved together."""
    base, folder = Path(os.path.realpath(base)), Path(os.path.realpath(out)).parent
    projects = Path.cwd(), base.parent.parent
    if any(base.is_relative_to(top) and folder.is_relative_to(top) for top in projects):
        return os.path.relpath(base, folder)
    return str(base)


def format_value(value: Any) -> str:
    """Return the source of a value.

    Raises:
        ValueError: If a string contains a mmengine placeholder. Names of classes and files are
            data, and must not inject code into a config.
    """
    if isinstance(value, str) and not isinstance(value, Source) and REPLACED in value:
        raise UserError(
            f'{value!r} contains {REPLACED}, which mmengine replaces in configs: rename it')
    if isinstance(value, dict):
        if all(str(key).isidentifier() and not keyword.iskeyword(key) for key in value):
            return f'dict({", ".join(f"{key}={format_value(value[key])}" for key in value)})'
        items = (f'{format_value(key)}: {format_value(value[key])}' for key in value)
        return f'{{{", ".join(items)}}}'
    if isinstance(value, list):
        return f'[{", ".join(map(format_value, value))}]'
    if isinstance(value, tuple):
        return f'({", ".join(map(format_value, value))}{"," if len(value) == 1 else ""})'
    return repr(value)


def format_comments(comments: Sequence[str]) -> Iterator[str]:
    """Yield the lines of comments, wrapped."""
    for comment in comments:
        text = printable(comment).replace(REPLACED, '{ {')
        yield from textwrap.wrap(text, 98, initial_indent='# ', subsequent_indent='#   ')


def format_config(head: Sequence[str],
                  content: Mapping[str, Any],
                  comments: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the formatted source of a config file.

    Args:
        head: First lines of the file.
        content: Value of each top-level setting.
        comments: Comments above settings of ``content``, by key.
    """
    lines = list(head)
    for key, value in content.items():
        lines += format_comments((comments or {}).get(key, ()))
        lines.append(f'{key} = {format_value(value)}')
    return FormatCode('\n'.join(lines) + '\n', style_config=YAPF)[0]
