"""Settings of a config on the command line: ``--cfg-options KEY=VALUE``, each checked."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from colonnade.common.errors import UserError
from colonnade.common.name_lists import ask_for_names

from .known_settings import FREE, TOP, is_misspelt, names_read_from


def merge_options(cfg: Config, options: dict[str, Any]) -> None:
    """Apply settings of the command line to a config.

    Args:
        cfg: Changed in place.
        options: Values by their paths, ``train_dataloader.dataset.pipeline.3.scale``.

    Raises:
        ValueError: If nothing would read a setting, or its path does not exist.
    """
    if problems := apply_options(cfg, options):
        raise UserError('\n'.join(problems.values()))


def apply_options(cfg: Config, options: dict[str, Any]) -> dict[str, str]:
    """Apply the settings that are possible; return what is wrong with the others, by their paths.

    Args:
        cfg: Changed in place.
        options: See :func:`merge_options`. Each is applied to what those before it made.
    """
    before, problems = cfg.to_dict(), {}
    for key in sorted(options, key=lambda key: not key.endswith('_delete_')):
        try:
            check_path(cfg.to_dict(), key)
            check_number(before, key, options[key])
            set_option(cfg, key, options[key])
        except ValueError as error:
            problems[key] = str(error)
    after = cfg.to_dict()
    for key in options.keys() - problems.keys():
        try:
            if not exists(after, key) and not key.endswith('_delete_'):
                print_log(
                    f'--cfg-options {key} has no effect: a later option removes it',
                    level=logging.WARNING)
            elif exists(after, key) and not exists(before, key):
                check_is_read(after, key)
        except ValueError as error:
            problems[key] = str(error)
    return {key: problems[key] for key in options if key in problems}


def set_option(cfg: Config, key: str, value: Any) -> None:
    """Set what is at a path; mmengine merges dicts, and sets no other items of lists."""
    parent, _, last = key.rpartition('.')
    current = cfg.to_dict()
    items = value_at(current, parent) if exists(current, parent) else None
    if isinstance(items, (list, tuple)) and not isinstance(value, dict):
        changed = [*items]
        changed[int(last)] = value
        set_option(cfg, parent, type(items)(changed))
        return
    try:
        cfg.merge_from_dict({key: deepcopy(value)})  # mmengine takes _delete_ out of it
    except (KeyError, TypeError, IndexError, AssertionError, AttributeError) as error:
        raise UserError(f'--cfg-options {key}={value}: {error}') from error


def check_number(cfg: dict[str, Any], key: str, value: Any) -> None:
    """Raise a ValueError for a text in place of a number."""
    old = value_at(cfg, key) if exists(cfg, key) else None
    is_number = isinstance(old, (int, float)) and not isinstance(old, bool)
    if is_number and isinstance(value, str) and not key.endswith('loss_scale'):  # or "dynamic"
        raise UserError(f'--cfg-options {key}: it is a number, {old}, got {value!r}')


def check_path(cfg: dict[str, Any], key: str) -> None:
    """Raise a ValueError for a path that cannot be followed, or leads to a copied variable."""
    top, *rest = key.split('.')
    if top not in TOP:
        check_variable(cfg, key)
    value, where = cfg.get(top), top
    for part in rest:
        if isinstance(value, (list, tuple)) and not exists(value, part):
            raise UserError(f'--cfg-options {key}: {where} is a list of {len(value)} items, '
                            f'0 to {len(value) - 1}, got {part}')
        if value is None and part.isdecimal():
            raise UserError(f'--cfg-options {key}: {where} is no list that has an item {part}')
        if value is not None and not isinstance(value, (dict, list, tuple)):
            raise UserError(f'--cfg-options {key}: {where} is {value!r} and has no settings')
        value = value_at(value, part) if exists(value, part) else None
        where = f'{where}.{part}'


def check_variable(cfg: dict[str, Any], key: str) -> None:
    """Raise a ValueError for a variable of a config file that nothing reads, or not any more."""
    top = key.split('.')[0]
    if top not in cfg:
        raise UserError(f'--cfg-options {key}: nothing reads {top}{suggestion(cfg, key)}')
    copies = [path for path, value in settings_below(cfg) if value == cfg[top]]
    if copies:
        raise UserError(f'--cfg-options {key}: {top} is a variable of the config file, and was '
                        f'copied when the file was read: set {", ".join(copies[:6])} instead')
    print_log(
        f'--cfg-options {key}: {top} is a variable of the config file, and whether anything '
        'reads it from there is not known',
        level=logging.WARNING)


def check_is_read(cfg: dict[str, Any], key: str) -> None:
    """Raise a ValueError for a path that is new in a config, and that nothing reads.

    Code that reads a dict key by key does not tell which keys. There, names that are misspelt ones
    of those that are set are refused, and others get a warning.
    """
    parts, parent = key.split('.'), cfg
    for index, part in enumerate(parts):
        path = parts[:index]
        if part == '_delete_' or path and path[-1] in FREE:
            return
        if isinstance(parent, dict):
            known = names_read_from(parent, path)
            others = [other for other in parent if other != part]
            if known is None and 'type' not in parent:
                if any(is_misspelt(part, other) for other in others):
                    known = set(others)
                elif others and part == parts[-1]:
                    print_log(
                        f'--cfg-options {key}: {".".join(path)} had no {part} in the config, and '
                        'whether anything reads it is not known',
                        level=logging.WARNING)
            if known is not None and part not in known:
                near = get_close_matches(part, list(map(str, known)), n=1)
                meant = '; ' + ask_for_names(['.'.join([*path, near[0]])]) if near else \
                    suggestion(cfg, key)
                raise UserError(f'--cfg-options {key}: {".".join(path)} has no setting '
                                f'{part}{meant}')
        parent = value_at(parent, part)


def suggestion(cfg: dict[str, Any], key: str) -> str:
    """Return paths that a wrong one may have been meant for, as the end of a sentence."""
    top, last = key.split('.')[0], key.split('.')[-1]
    paths = [path for path, _ in settings_below(cfg) if path != key]
    near = get_close_matches(key, paths, n=1, cutoff=0.85)
    if not near and top not in TOP:
        near = get_close_matches(top, sorted(TOP), n=1, cutoff=0.75)
    names = get_close_matches(last, {path.split('.')[-1] for path in paths}, n=1, cutoff=0.75)
    near += [path for path in paths if path.split('.')[-1] in names]
    return '; ' + ask_for_names(list(dict.fromkeys(near))[:3]) if near else ''


def settings_below(cfg: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all paths and values of a config, without those of its file's own variables."""
    return paths_below({key: value for key, value in cfg.items() if key in TOP})


def paths_below(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yield all paths below a value, and what they lead to."""
    items = value.items() if isinstance(value, dict) else enumerate(value) \
        if isinstance(value, (list, tuple)) else ()
    for key, item in items:
        inner = f'{path}.{key}' if path else str(key)
        yield inner, item
        yield from paths_below(item, inner)


def value_at(value: Any, key: str) -> Any:
    """Return what a path of dicts and lists leads to.

    Raises:
        KeyError: If that is nothing.
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
    """Return True if a path leads to something."""
    try:
        value_at(cfg, key)
    except KeyError:
        return False
    return True
