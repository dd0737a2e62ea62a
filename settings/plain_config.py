"""Configs as data: assignments of literals and of ``dict(...)``, read without running them."""
from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from mmengine.config.config import RESERVED_KEYS

from colonnade.common.errors import MissingFileError, UserCodeError, UserError

from .config_writer import laid_out
from .registries import runs_user_code

MOST_CHARACTERS = 2**20  # of a config
PLAIN = (str, int, float, bool, type(None))


class PackageError(UserError):
    """A package cannot be made, or is damaged, not understood or not to be trusted."""


class PackageCodeError(PackageError, UserCodeError):
    """A package that is trusted, and whose own code fails."""


class MissingPackageFileError(PackageError, MissingFileError):
    """A package that lacks a file."""


@contextmanager
def package_errors(source: str | Path) -> Iterator[None]:
    """Context manager that makes a PackageError of whatever an untrusted package leads to."""
    try:
        yield
    except (PackageError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
        cls = PackageCodeError if runs_user_code(error) else PackageError
        raise cls(f'{source} cannot be loaded: {kind}{error}') from error


def parse_config(text: str, source: str) -> dict[str, Any]:
    """The values that a config assigns, by name.

    Args:
        text: Of the config.
        source: Name of its file.

    Raises:
        PackageError: If it holds anything but assignments of plain values; the line is named.
    """
    if len(text) > MOST_CHARACTERS:
        raise PackageError(f'{source} has {len(text)} characters; a config has at most '
                           f'{MOST_CHARACTERS}')
    if '{{' in text:  # mmengine, which others read the file with, replaces what follows
        raise PackageError(f'{source} has {{{{, which stands for other text: not read')
    try:
        tree = ast.parse(text)
        values: dict[str, Any] = {}
        for statement in tree.body:
            name, value = _assignment(statement, text, source)
            if name in values or name in RESERVED_KEYS or name.startswith('_'):
                raise _refused(statement, text, source)
            values[name] = _value(value, text, source)
    except PackageError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise PackageError(f'{source} cannot be read: {type(error).__name__}: {error}') from error
    return values


def _assignment(statement: ast.stmt, text: str, source: str) -> tuple[str, ast.expr]:
    """The name and the value of ``name = value``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return target.id, statement.value
    raise _refused(statement, text, source)


def _value(node: ast.expr, text: str, source: str) -> Any:
    """What a literal or a call of ``dict`` stands for."""

    def of(child: ast.expr) -> Any:
        return _value(child, text, source)

    match node:
        case ast.Constant(value=value) if type(value) in PLAIN:
            return value
        case ast.List(elts=items):
            return [of(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(of(item) for item in items)
        case ast.Dict(keys=keys, values=items):
            pairs = [(key, of(item)) for key, item in zip(keys, items, strict=True)]
            if all(isinstance(key, ast.Constant) for key, _ in pairs):
                return {of(key): item for key, item in pairs if key is not None}
        case ast.Call(func=ast.Name(id='dict'), args=[], keywords=arguments):
            named = {argument.arg: of(argument.value) for argument in arguments}
            if None not in named and len(named) == len(arguments):
                return named
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value
    raise _refused(node, text, source)


def _refused(node: ast.stmt | ast.expr, text: str, source: str) -> PackageError:
    code = text.splitlines()[node.lineno - 1].strip()
    return PackageError(
        f'{source}, line {node.lineno}: {code[:80]!r} is not run, since a config to share '
        'assigns literals and dict(...) alone')


def config_text(values: Mapping[str, Any], head: list[str]) -> str:
    """A config that :func:`parse_config` reads as ``values``, tuples and numbers included.

    Args:
        values: To assign.
        head: Comments above them.

    Raises:
        PackageError: If a value is no literal, naming its key.
    """
    for name, value in values.items():
        require_plain(value, name)
    return laid_out(head, values)


def require_plain(value: Any, name: str) -> None:
    """Raise a PackageError for a value that cannot be written as a literal."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            require_plain(key, f'a key of {name}')
            require_plain(item, f'{name}.{key}')
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            require_plain(item, f'{name}[{index}]')
    elif isinstance(value, str) and '{{' in value:
        raise PackageError(f'{name} is {value!r}, and mmengine replaces what is in {{{{ }}}}')
    elif type(value) not in PLAIN or (isinstance(value, float) and not isfinite(value)):
        raise PackageError(f'{name} is {value!r}, and only numbers, strings, None and lists, '
                           'tuples and dicts of them can be shared: write it so in the config')
