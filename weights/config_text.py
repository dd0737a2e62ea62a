"""Configs as data: assignments of literals and ``dict(...)``, parsed without running code."""
from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from mmengine.config.config import RESERVED_KEYS

from colonnade.common.errors import UserError

MAX_CHARACTERS = 2**20  # limit of a config file
PLAIN = (str, int, float, bool, type(None))
OUR_IMPORTS = ('colonnade', 'mmdet', 'mmseg')
REGISTERED = re.compile(r'(mmdet|mmseg)\.[A-Z]\w*')  # such as mmdet.DiceLoss, in mmseg's heads


class _CodeFoundError(Exception):
    """Code in a config; the argument is its node."""


def parse_config(text: str, source: str) -> dict[str, Any]:
    """Return the values that a config file assigns, by name.

    Args:
        text: Content of the file.
        source: Name of the file, for messages.

    Raises:
        UserError: If there is anything but assignments of plain values; the line is named.
    """
    if len(text) > MAX_CHARACTERS:
        raise UserError(f'{source} has {len(text)} characters, expected at most {MAX_CHARACTERS}')
    if '{{' in text:  # mmengine would replace the placeholder
        raise UserError(f'{source} contains {{{{, an mmengine placeholder: remove it')
    values: dict[str, Any] = {}
    try:
        for statement in ast.parse(text).body:
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=value) if (name not in (*values, *RESERVED_KEYS, '_base_')
                                     and not name.startswith('__')):
                    values[name] = _evaluate(value)
                case _:
                    raise _CodeFoundError(statement)
    except _CodeFoundError as error:
        line = error.args[0].lineno
        raise UserError(
            f'{source}, line {line}: {text.splitlines()[line - 1].strip()[:80]!r} is not executed: '
            'the config may assign only literals and dict(...)') from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(f'{source} cannot be read: {type(error).__name__}: {error}') from error
    return values


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


def is_plain_config(text: Any) -> bool:
    """Return True if the text of a config only assigns values, and names code in registries only.

    It may import Colonnade, mmdet and mmseg. mmengine would import and call a ``type`` like
    ``os.system``. mmcv and mmdet evaluate some strings of models, such as the ``type`` of ``nms``,
    so these may not contain calls.
    """
    try:
        values = parse_config(text, 'the config')
    except (UserError, TypeError):  # checkpoints have other objects in place of texts
        return False
    types = list(iter_types(values))
    imports = values.pop('custom_imports', {})
    modules = iter_strings(list(imports.values()) if isinstance(imports, dict) else imports)
    return (not any('(' in text for text in (*iter_strings(values.get('model')), *types))
            and all(name.split('.')[0] in OUR_IMPORTS
                    for name in modules) and not any(map(is_module_name, iter_strings(values)))
            and not any(map(is_module, types)))


def iter_strings(value: Any) -> Iterator[str]:
    """Yield all strings in a part of a config, including keys of dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from iter_strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iter_strings(item)


def iter_types(value: Any) -> Iterator[str]:
    """Yield the ``type`` of each dict in a part of a config."""
    if isinstance(value, dict):
        yield from iter_strings(value.get('type'))
    for item in value.values() if isinstance(value, dict) else value \
            if isinstance(value, (list, tuple)) else ():
        yield from iter_types(item)


def is_module_name(text: str) -> bool:
    """Return True if mmengine might resolve a string to an attribute of a module.

    The packages mmdet and mmseg have no attribute with a capital: such a name is a registered type.
    """
    return ('.' in text and REGISTERED.fullmatch(text) is None
            and is_module(text.partition('.')[0]))


def is_module(name: str) -> bool:
    """Return True if a module of this name can be imported."""
    return name.isidentifier() and (name in sys.modules or find_spec(name) is not None)
