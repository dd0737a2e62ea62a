"""Configs as data: assignments of literals and ``dict(...)``, parsed without running code."""
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

from .config_writer import format_config
from .registries import is_from_user_code

MAX_CHARACTERS = 2**20  # limit of a config file
PLAIN = (str, int, float, bool, type(None))


class PackageError(UserError):
    """Package that cannot be created, or is damaged, unsupported or not to be trusted."""


class PackageCodeError(PackageError, UserCodeError):
    """Trusted package whose own code fails."""


class MissingPackageFileError(PackageError, MissingFileError):
    """Package that lacks a file."""


@contextmanager
def package_errors(source: str | Path) -> Iterator[None]:
    """Context manager that turns any error of an untrusted package into a PackageError."""
    try:
        yield
    except (PackageError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # untrusted content can make any library raise any error
        kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
        cls = PackageCodeError if is_from_user_code(error) else PackageError
        raise cls(f'{source} cannot be loaded: {kind}{error}') from error


def parse_config(text: str, source: str) -> dict[str, Any]:
    """Return the values that a config file assigns, by name.

    Args:
        text: Content of the file.
        source: Name of the file, for messages.

    Raises:
        PackageError: If there is anything but assignments of plain values; the line is named.
    """
    if len(text) > MAX_CHARACTERS:
        raise PackageError(f'{source} has {len(text)} characters, expected at most '
                           f'{MAX_CHARACTERS}')
    if '{{' in text:  # mmengine would replace the placeholder
        raise PackageError(f'{source} has {{{{, a placeholder of mmengine: remove it')
    values: dict[str, Any] = {}
    try:
        for statement in ast.parse(text).body:
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=value) if (name not in values and name not in RESERVED_KEYS
                                     and not name.startswith('_')):
                    values[name] = _evaluate(value)
                case _:
                    raise _CodeFoundError(statement)
    except _CodeFoundError as error:
        line = error.args[0].lineno
        raise PackageError(
            f'{source}, line {line}: {text.splitlines()[line - 1].strip()[:80]!r} is not executed, '
            'because a shared config may only assign literals and dict(...)') from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise PackageError(f'{source} cannot be read: {type(error).__name__}: {error}') from error
    return values


class _CodeFoundError(Exception):
    """Code in a config; the argument is its node."""


def _evaluate(node: ast.expr) -> Any:
    """Return the value of a literal or a call of ``dict``."""
    match node:
        case ast.Constant(value=value) if type(value) in PLAIN:
            return value
        case ast.List(elts=items):
            return [_evaluate(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_evaluate(item) for item in items)
        case ast.Dict(keys=keys, values=items):
            if all(isinstance(key, ast.Constant) for key in keys):
                return {_evaluate(key): _evaluate(item)
                        for key, item in zip(keys, items, strict=True) if key}  # yapf: disable
        case ast.Call(func=ast.Name(id='dict'), args=[], keywords=arguments):
            named = {argument.arg: _evaluate(argument.value) for argument in arguments}
            if None not in named and len(named) == len(arguments):
                return named
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value
    raise _CodeFoundError(node)


def config_text(values: Mapping[str, Any], head: list[str]) -> str:
    """Return the config file that :func:`parse_config` reads as ``values``.

    Args:
        values: Top-level settings.
        head: Comment lines above them.

    Raises:
        PackageError: If a value is not a literal; its key is named.
    """
    for name, value in values.items():
        _require_plain(value, name)
    return format_config(head, values)


def _require_plain(value: Any, name: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_plain(key, f'a key of {name}')
            _require_plain(item, f'{name}.{key}')
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _require_plain(item, f'{name}[{index}]')
    elif isinstance(value, str) and '{{' in value:
        raise PackageError(f'{name} is {value!r}, and mmengine replaces what is in {{{{ }}}}')
    elif type(value) not in PLAIN or (isinstance(value, float) and not isfinite(value)):
        raise PackageError(f'{name} is {value!r}: a shared config may only contain numbers, '
                           'strings, None, and lists, tuples and dicts of them')
