"""Settings of a config on the command line: ``--cfg-options KEY=VALUE``, each checked."""
from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Set
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, reduce
from typing import Any

from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from colonnade.common.errors import UserError

from .registries import find_class

#: top level of a config: what mmengine's runners take, and what they and ours read besides
TOP = {
    *inspect.signature(Runner.__init__).parameters, 'default_scope', 'custom_imports', 'sync_bn',
    'model_wrapper_cfg', 'runner_type', 'strategy', 'compile', 'find_unused_parameters',
    'activation_checkpointing', 'efficient_conv_bn_eval', 'tta_model', 'tta_pipeline', 'log_level',
    'detect_anomalous_params', 'sharded_checkpoints'
} - {'self', 'cfg'}
#: dicts whose keys are the user's own
FREE = ('custom_keys', 'metainfo', 'init_cfg', 'cfg', 'backend_args')

#: what builders take out of a dict before the class gets it
BESIDE = {
    'default_hooks': {'priority'},
    'custom_hooks': {'priority'},
    'param_scheduler': {'convert_to_iter_based'},
}


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
    """Apply those settings that can be; returns what is wrong with the others.

    Args:
        cfg: Changed in place.
        options: See :func:`merge_options`.
    """
    before, problems = cfg.to_dict(), {}
    for key, value in options.items():
        try:
            check_path(before, key, options)
            check_kind(before, key, value)
        except ValueError as error:
            problems[key] = str(error)
    good = {key: value for key, value in options.items() if key not in problems}
    whole: dict[str, Any] = {}
    for key, value in good.items():
        add_option(whole, before, key, value)
    try:
        cfg.merge_from_dict(whole)
    except (KeyError, TypeError, IndexError, AssertionError, AttributeError) as error:
        return problems | {' '.join(good): f'--cfg-options {" ".join(good)}: {error}'}
    after = cfg.to_dict()
    for key in good:
        if not exists(after, key) and '_delete_' not in key and not is_switched_off(after, key):
            problems[key] = (f'--cfg-options {key}: another setting takes the place of what it is '
                             'in: leave one of them out')
            continue
        if not exists(before, key) and not is_switched_off(after, key):
            try:
                check_is_read(after, key)
            except ValueError as error:
                problems[key] = str(error)
    return problems


def check_kind(cfg: dict[str, Any], key: str, value: Any) -> None:
    """Raise a ValueError for a text in place of a number."""
    was = value_at(cfg, key) if exists(cfg, key) else None
    is_number = isinstance(was, (int, float)) and not isinstance(was, bool)
    if is_number and isinstance(value, str) and not key.endswith('loss_scale'):  # or "dynamic"
        raise UserError(f'--cfg-options {key}: it is a number, {was}, got {value!r}')


def add_option(options: dict[str, Any], cfg: dict[str, Any], key: str, value: Any) -> None:
    """Add a setting; an item of a list as the whole list, unless mmengine merges it into a dict.

    Args:
        options: Changed in place.
        cfg: That they are for.
        key: A path.
        value: What it leads to then.
    """
    parent, _, last = key.rpartition('.')
    items = value_then(options, cfg, parent)
    if isinstance(items, (list, tuple)) and last.isdecimal() and int(last) < len(items):
        at = int(last)
        if not (isinstance(value, dict) and isinstance(items[at], dict)):
            changed = [*items[:at], value, *items[at + 1:]]
            add_option(options, cfg, parent, type(items)(changed))
            return
    options[key] = value


def value_then(options: dict[str, Any], cfg: dict[str, Any], key: str) -> Any:
    """What a path leads to once settings are applied; None if it does not exist."""
    parts = key.split('.')
    for end in range(len(parts), 0, -1):
        with suppress(KeyError):  # an earlier setting of it, or of what it is in
            return reduce(step_into, parts[end:], options['.'.join(parts[:end])])
    return value_at(cfg, key) if exists(cfg, key) else None


def step_into(value: Any, part: str) -> Any:
    """The item of a dict or list that a part of a path names.

    Raises:
        KeyError: If there is none.
    """
    if isinstance(value, dict):
        return value[part]
    if isinstance(value, (list, tuple)) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    raise KeyError(part)


def value_at(cfg: Any, key: str) -> Any:
    """What a path leads to.

    Raises:
        KeyError: If that is nothing.
    """
    for part in key.split('.'):
        cfg = step_into(cfg, part)
    return cfg


def exists(cfg: Any, key: str) -> bool:
    """Whether a path leads to something."""
    try:
        value_at(cfg, key)
    except KeyError:
        return False
    return True


def is_switched_off(cfg: dict[str, Any], key: str) -> bool:
    """Whether a path leads into a section that is None, as of a run without validation."""
    parts = key.split('.')
    sections = ('.'.join(parts[:number]) for number in range(1, len(parts)))
    return any(exists(cfg, section) and value_at(cfg, section) is None for section in sections)


def check_path(cfg: dict[str, Any], key: str, options: dict[str, Any]) -> None:
    """Raise a ValueError for a path that cannot be followed, or leads to a copied variable."""
    top, *rest = key.split('.')
    if top not in TOP and top in cfg:
        if copies := copies_of(cfg, top):
            raise UserError(f'--cfg-options {key}: {top} is a variable of the config file, and '
                            f'was copied when the file was read: set {", ".join(copies)} instead')
        print_log(
            f'--cfg-options {key}: {top} is a variable of the config file, and whether anything '
            'reads it from there is not known',
            level=logging.WARNING)
    elif top not in TOP:
        raise UserError(f'--cfg-options {key}: nothing reads {top}{suggestion(cfg, key)}')
    value: Any = cfg.get(top)
    for index, part in enumerate(rest):
        if isinstance(value, (list, tuple)) and not exists(value, part):
            where = '.'.join([top, *rest[:index]])
            raise UserError(f'--cfg-options {key}: {where} is a list of {len(value)} items, '
                            f'0 to {len(value) - 1}, got {part}')
        if value is None and part.isdecimal():
            where = '.'.join([top, *rest[:index]])
            raise UserError(f'--cfg-options {key}: {where} is no list that has an item {part}')
        if value is not None and not isinstance(value, (dict, list, tuple)):
            where = '.'.join([top, *rest[:index]])
            if where not in options:
                raise UserError(f'--cfg-options {key}: {where} is {value!r} and has no settings')
            return
        value = step_into(value, part) if value is not None and exists(value, part) else None


def copies_of(cfg: dict[str, Any], variable: str) -> list[str]:
    """Paths that hold what a variable of the config file holds."""
    wanted = cfg[variable]
    return [path for path, value in paths_below(cfg)
            if value == wanted and path.split('.')[0] in TOP][:6]  # yapf: disable


def paths_below(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """All paths below a value, and what they lead to."""
    items = value.items() if isinstance(value, dict) else enumerate(value) \
        if isinstance(value, (list, tuple)) else ()
    for key, item in items:
        inner = f'{path}.{key}' if path else str(key)
        yield inner, item
        yield from paths_below(item, inner)


def suggestion(cfg: dict[str, Any], key: str) -> str:
    """Paths of a config that a wrong one may have been meant for, as the end of a sentence."""
    top, last = key.split('.')[0], key.split('.')[-1]
    paths = [path for path, _ in paths_below(cfg)]
    paths = [path for path in paths if path.split('.')[0] in TOP and path != key]
    near = get_close_matches(key, paths, n=1, cutoff=0.85)
    if not near and top not in TOP:
        near = get_close_matches(top, sorted(TOP), n=1, cutoff=0.75)
    names = get_close_matches(last, {path.split('.')[-1] for path in paths}, n=1, cutoff=0.75)
    near += [path for path in paths if path.split('.')[-1] in names]
    near = list(dict.fromkeys(near))[:3]
    return f'; did you mean {" or ".join(near)}?' if near else ''


def check_is_read(cfg: dict[str, Any], key: str) -> None:
    """Raise a ValueError for a path that is new in a config, and that nothing reads.

    Code that reads a dict key by key does not tell which keys. There, names that are misspelt ones
    of those that are set are refused, and others get a warning.
    """
    parts = key.split('.')
    parent: Any = cfg
    for index, part in enumerate(parts):
        path = parts[:index]
        if part == '_delete_' or path and path[-1] in FREE:
            return
        known = names_read_from(parent, path)
        if isinstance(parent, dict) and known is None and 'type' not in parent:
            others = [other for other in parent if other != part]
            if any(is_misspelt(part, other) for other in others):
                known = set(others)
            elif index == len(parts) - 1 and others:
                print_log(
                    f'--cfg-options {key}: {".".join(path)} had no {part} in the config, and '
                    'whether anything reads it is not known',
                    level=logging.WARNING)
        if isinstance(parent, dict) and known is not None and part not in known:
            near = get_close_matches(part, known, n=1, cutoff=0.6)
            meant = f'; did you mean {".".join([*path, near[0]])}?' if near else suggestion(
                cfg, key)
            raise UserError(f'--cfg-options {key}: {".".join(path)} has no setting {part}{meant}')
        parent = step_into(parent, part)


def is_misspelt(name: str, other: str) -> bool:
    """Whether a name is most likely another one: longer or shorter at its end, or nearly alike.

    Names that differ in a number (``stage3``) or in what comes first (``unsup_weight``) do not.
    """
    if min(len(name), len(other)) >= 3 and (name.startswith(other) or other.startswith(name)):
        return '_' not in name[len(other):] + other[len(name):]
    numbered = name.rstrip('0123456789') == other.rstrip('0123456789')
    joined = name.endswith(other) or other.endswith(name)
    return not numbered and not joined and bool(get_close_matches(name, [other], cutoff=0.88))


def names_read_from(value: Any, path: list[str]) -> Set[str] | None:
    """The settings that are read from a dict of a config; None if that is not known.

    Args:
        value: What the path leads to.
        path: Of the dict; empty for the whole config.
    """
    if not path:
        return TOP
    if not isinstance(value, dict):
        return None
    if path[-1] == 'norm_cfg':
        return None  # every norm has keys of its own, and build_norm_layer reads more
    if 'type' in value:
        names = names_of_type(value['type'], is_wrapper=path == ['optim_wrapper'])
        return None if names is None else names | {'type', '_scope_'} | BESIDE.get(path[0], set())
    if path[-1].endswith('_dataloader'):
        return {*inspect.signature(DataLoader).parameters, 'num_batch_per_epoch'}
    if path == ['train_cfg']:
        loops = (EpochBasedTrainLoop, IterBasedTrainLoop)
        return {'type', 'by_epoch'}.union(*(inspect.signature(loop).parameters for loop in loops))
    if path == ['optim_wrapper']:
        return (names_of_type(OptimWrapper, is_wrapper=True) or set()) | {'type'}
    return None


def names_of_type(kind: Any, *, is_wrapper: bool = False) -> Set[str] | None:
    """The arguments of a class that a config names; None if it is not known or takes any.

    Args:
        kind: A class, or its name in a registry.
        is_wrapper: Whether it is an optimizer wrapper, of which its constructor reads more.
    """
    found = find_class(kind)
    if not inspect.isclass(found):
        return None
    cls: Any = found
    names = arguments_of(cls)
    return names if names is None or not is_wrapper else \
        names | {'optimizer', 'constructor', 'paramwise_cfg'}


@cache
def arguments_of(cls: Any) -> frozenset[str] | None:
    """The arguments of a class, also those that it hands to its bases; None if it takes any."""
    names: set[str] = set()
    for base in cls.__mro__:
        if '__init__' not in vars(base) or base is object:
            continue
        parameters = inspect.signature(vars(base)['__init__']).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if base is CheckpointHook:  # hands what it does not know to what saves, after hours
            names |= set(inspect.signature(Runner.save_checkpoint).parameters)
        elif any(p.kind == p.VAR_KEYWORD for p in parameters):
            continue
        return frozenset(names - {'self'})
    return None
