"""Config overrides of the command line: ``--cfg-options KEY=VALUE``, each checked."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from colonnade.common.errors import UserError
from colonnade.common.name_lists import ask_for_names, format_count

from .known_settings import FREE, TOP, get_known_settings, is_typo


def merge_options(cfg: Config, options: dict[str, Any]) -> None:
    """Apply overrides to a config.

    Args:
        cfg: Config, modified in place.
        options: Values by dotted key, such as ``train_dataloader.dataset.pipeline.3.scale``.

    Raises:
        ValueError: If nothing would read a setting, or its key does not exist.
    """
    if problems := apply_options(cfg, options):
        raise UserError('\n'.join(problems.values()))


def apply_options(cfg: Config, options: dict[str, Any]) -> dict[str, str]:
    """Apply all overrides that are valid; return the error messages of the others, by key.

    Args:
        cfg: Config, modified in place.
        options: See :func:`merge_options`. They are applied one after the other.
    """
    before, problems = cfg.to_dict(), {}
    for key in sorted(options, key=lambda key: not key.endswith('_delete_')):
        try:
            _check_key(cfg.to_dict(), key)
            old = get_value(before, key) if exists(before, key) else None
            is_number = isinstance(old, (int, float)) and not isinstance(old, bool)
            is_dynamic = key.endswith('loss_scale')  # a number or 'dynamic'
            if is_number and isinstance(options[key], str) and not is_dynamic:
                raise UserError(f'expected a number such as {old}, got {options[key]!r}')
            _set_option(cfg, key, options[key])
        except ValueError as error:
            problems[key] = f'--cfg-options {key}: {error}'
    after = cfg.to_dict()
    for key in options.keys() - problems.keys():
        if key.endswith('_delete_'):
            continue
        if not exists(after, key):
            _warn(key, 'it has no effect, because a later option removes it')
        elif not exists(before, key) and (problem := _find_unread(after, key)):
            problems[key] = f'--cfg-options {key}: {problem}'
    return {key: problems[key] for key in options if key in problems}


def _warn(key: str, message: str) -> None:
    print_log(f'--cfg-options {key}: {message}', level=logging.WARNING)


def _set_option(cfg: Config, key: str, value: Any) -> None:
    """Set a value; mmengine merges dicts, but does not replace other items of lists."""
    parent, _, last = key.rpartition('.')
    current = cfg.to_dict()
    items = get_value(current, parent) if exists(current, parent) else None
    if isinstance(items, (list, tuple)) and not isinstance(value, dict):
        changed = [*items]
        changed[int(last)] = value
        _set_option(cfg, parent, type(items)(changed))
        return
    try:
        cfg.merge_from_dict({key: deepcopy(value)})  # mmengine removes _delete_ from the value
    except (KeyError, TypeError, IndexError, AssertionError, AttributeError) as error:
        raise UserError(f'it cannot be set to {value!r}: {error}') from error


def _check_key(cfg: dict[str, Any], key: str) -> None:
    """Raise a ValueError for a key that cannot be set, or belongs to a copied variable."""
    name, *rest = key.split('.')
    if name not in TOP:
        _check_variable(cfg, key, name)
    value = cfg.get(name)
    for part in rest:
        if isinstance(value, (list, tuple)) and not exists(value, part):
            raise UserError(f'{name} is a list of {format_count(len(value), "item")}, expected '
                            f'an index from 0 to {len(value) - 1}, got {part}')
        if value is None and part.isdecimal():
            raise UserError(f'{name} is not a list, so it has no item {part}')
        if value is not None and not isinstance(value, (dict, list, tuple)):
            raise UserError(f'{name} is {value!r} and has no settings')
        value = get_value(value, part) if exists(value, part) else None
        name = f'{name}.{part}'


def _check_variable(cfg: dict[str, Any], key: str, name: str) -> None:
    """Raise a ValueError for a variable of a config file that nothing reads any more."""
    if name not in cfg:
        raise UserError(f'unknown setting {name}{_suggest_keys(cfg, key)}')
    if copies := [path for path, value in _iter_settings(cfg) if value == cfg[name]]:
        raise UserError(f'{name} is a variable of the config file, and its value was copied when '
                        f'the file was read: set {", ".join(copies[:6])} instead')
    _warn(key, f'{name} is a variable of the config file that may have no effect')


def _find_unread(cfg: dict[str, Any], key: str) -> str:
    """Return why nothing reads a new key, or an empty string.

    Where the valid keys are unknown, likely typos of existing keys are errors, and other new keys
    get a warning.
    """
    parts, parent = key.split('.'), cfg
    for index, part in enumerate(parts):
        path = parts[:index]
        if part == '_delete_' or path and path[-1] in FREE:
            break
        if isinstance(parent, dict):
            name, known = '.'.join(path), get_known_settings(parent, path)
            others = parent.keys() - {part}
            if known is None and 'type' not in parent:
                if any(is_typo(part, other) for other in others):
                    known = others
                elif others and part == parts[-1]:
                    _warn(key, f'{name} has no {part} in the config, so it may have no effect')
            if known is not None and part not in known:
                near = get_close_matches(part, sorted(map(str, known)), n=1)
                return f'{name} has no setting {part}' + (
                    f'; {ask_for_names([".".join([*path, *near])])}' if near else _suggest_keys(
                        cfg, key))
        parent = get_value(parent, part)
    return ''


def _suggest_keys(cfg: dict[str, Any], key: str) -> str:
    """Return similar keys of the config, as the end of a message."""
    top, last = key.split('.')[0], key.split('.')[-1]
    paths = [path for path, _ in _iter_settings(cfg) if path != key]
    near = get_close_matches(key, paths, n=1, cutoff=0.85)
    if not near and top not in TOP:
        near = get_close_matches(top, sorted(TOP), n=1, cutoff=0.75)
    names = get_close_matches(last, {path.split('.')[-1] for path in paths}, n=1, cutoff=0.75)
    near += [path for path in paths if path.split('.')[-1] in names]
    return '; ' + ask_for_names(list(dict.fromkeys(near))[:3]) if near else ''


def _iter_settings(cfg: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a config without the variables of its file."""
    return iter_paths({key: value for key, value in cfg.items() if key in TOP})


def iter_paths(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of nested dicts and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) \
        if isinstance(value, (list, tuple)) else ()
    for key, item in items:
        inner = f'{path}.{key}' if path else str(key)
        yield inner, item
        yield from iter_paths(item, inner)


def get_value(value: Any, key: str) -> Any:
    """Return the value at a dotted key of nested dicts and lists.

    Raises:
        KeyError: If it does not exist.
    """
    for part in key.split('.'):
        if isinstance(value, dict):
            value = value[part]
        elif isinstance(value, (list, tuple)) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(key)
    return value


def exists(cfg: Any, key: str) -> bool:
    """Return True if a dotted key exists."""
    try:
        get_value(cfg, key)
    except KeyError:
        return False
    return True
