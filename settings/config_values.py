"""Config values as plain Python objects, nested or flattened to dotted keys."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from mmengine.config import Config

from .overrides import iter_paths

#: steps that load masks and label maps of panoptic segments
PANOPTIC_STEPS = {'LoadPanopticAnnotations', 'LoadPanopticSegments'}


def map_dicts(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of a config section in which ``change`` is applied to each dict, inner first.

    Args:
        value: Config section. Dicts, lists and tuples are copied, everything else is shared.
        change: Function that gets a new plain dict, which it may modify, and returns one.
    """
    if isinstance(value, dict):
        return change({key: map_dicts(item, change) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(map_dicts(item, change) for item in value)
    return value


def plain(value: Any) -> Any:
    """Return a copy of a config section with plain dicts instead of mmengine's."""
    return map_dicts(value, lambda part: part)


def remove_key(value: Any, key: str) -> Any:
    """Return a plain copy of a config section without a key, at any depth."""
    return map_dicts(value, lambda part: {k: item for k, item in part.items() if k != key})


def flat(value: Any, name: str = '') -> dict[str, str]:
    """Return the ``repr`` of each setting by its dotted key.

    Tuples become lists, sets become sorted lists and addresses are removed, since they differ
    between processes.
    """
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    if items:
        settings: dict[str, str] = {}
        for key, item in items:
            settings |= flat(item, f'{name}.{key}' if name else key)
        return settings
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    elif isinstance(value, tuple):
        value = list(value)
    return {name: re.sub(r' at 0x[0-9a-f]+', '', repr(value))}


def has_masks(cfg: Config) -> bool:
    """Return True if a detector is trained with masks."""
    data = cfg.get('train_dataloader')
    return True in iter_values(data, 'with_mask') or loads_segments(cfg)


def loads_segments(cfg: Config) -> bool:
    """Return True if a detector is trained with panoptic segments: masks and label maps."""
    return not PANOPTIC_STEPS.isdisjoint(iter_values(cfg.get('train_dataloader'), 'type'))


def iter_values(value: Any, name: str) -> Iterator[Any]:
    """Yield the values of a setting anywhere in a part of a config."""
    return (item for path, item in iter_paths(value) if path.rpartition('.')[2] == name)
