"""What heads state about the maps that they read: which, how wide, of what stride."""
from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.registry import MODELS

from colonnade.models.feature_maps import Map, to_integer
from colonnade.settings.checks.head_widths import strides_for_fpn_head
from colonnade.settings.known_settings import get_arguments, names_of_type
from colonnade.settings.registries import find_class

from .notes import Notes

#: settings that list the strides of maps, or a size that is proportional to them
STRIDES = ('strides', 'featmap_strides', 'point_strides', 'finest_scale')


def readers(value: Any, path: str = 'model', *, top: bool = True) -> Iterator[tuple[str, dict]]:
    """Yield the parts of a model that read maps of the backbone or neck, with their paths.

    They are the model's own heads, and what has an ``in_index`` of its own within one.
    """
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        where = f'{path}[{key}]' if isinstance(key, int) else f'{path}.{key}'
        if key in ('backbone', 'neck') or not isinstance(item, (dict, list)):
            continue
        is_head = top and (isinstance(key, int) or key.endswith('_head'))
        if isinstance(item, dict) and 'in_channels' in item and (is_head or 'in_index' in item):
            yield where, item
        yield from readers(item, where, top=is_head and isinstance(item, list))


def read_maps(head: dict[str, Any], number: int) -> list[int]:
    """Return which of a number of maps a head reads, in its order."""
    several = isinstance(head['in_channels'], (list, tuple))
    takes_index = 'in_index' in (names_of_type(find_class(head.get('type'), MODELS)) or ())
    default = list(range(number)) if several or not takes_index else -1
    chosen = head.get('in_index', default)
    return [index % number for index in (chosen if isinstance(chosen, (list, tuple)) else [chosen])]


def all_read(model: dict[str, Any], number: int) -> list[int]:
    """Return which of a number of maps the heads read; some read the first besides theirs."""
    read = {index for _, head in readers(model) for index in read_maps(head, number)}
    read |= {0 for _, head in readers(model) if head.get('c1_in_channels')}
    return sorted(read) or list(range(number))


def fit_heads(model: dict[str, Any], before: Sequence[Map], after: Sequence[Map], used: list[int],
              notes: Notes) -> None:
    """Set which maps the heads read, and how wide these are.

    Args:
        model: Changed in place.
        before: Maps that the heads got.
        after: Maps that they get now.
        used: Indices in ``before`` of those.
        notes: Takes what does not fit.
    """
    for where, head in readers(model):
        indices = read_maps(head, len(before))
        several = isinstance(head['in_channels'], (list, tuple))
        widths = [before[index].width for index in indices]
        stated = list(head['in_channels']) if several else [head['in_channels']] * len(indices)
        if stated != widths:
            notes.leave(f'{where}.in_channels is {head["in_channels"]}, the maps had the widths '
                        f'{widths}: it is left as it is')
            continue
        places = [used.index(index) for index in indices]
        widths = [after[place].width for place in places]
        head['in_channels'] = widths if several else widths[0]
        if head.get('c1_in_channels'):
            head['c1_in_channels'] = after[0].width
        chosen = head.get('in_index')
        if isinstance(chosen, (list, tuple)):
            head['in_index'] = places
        elif chosen is not None:
            head['in_index'] = places[0] if chosen >= 0 else places[0] - len(used)


def scale_strides(value: Any, ratio: float, path: str, notes: Notes) -> None:
    """Multiply the strides that heads state, or have by default, for patches of another size."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            scale_strides(item, ratio, f'{path}[{index}]', notes)
    if not isinstance(value, dict):
        return
    cls = find_class(value.get('type'))
    defaults = get_arguments(cls) if inspect.isclass(cls) else None
    for key, item in ((defaults or {}) | value).items():
        if key in STRIDES and isinstance(item, (list, tuple, int, float)):
            value[key] = scaled(item, ratio)
        elif key == 'feature_strides' and isinstance(item, (list, tuple)):  # of mmseg's FPNHead
            value[key] = strides_for_fpn_head(scaled(item, ratio))
        elif key.endswith('_stride') and isinstance(item, (int, float)):
            notes.leave(f'{path}.{key} is {item}, and strides are {ratio:g} of theirs: it is left '
                        'as it is')
        elif key not in ('backbone', 'neck'):
            scale_strides(item, ratio, f'{path}.{key}', notes)


def scaled(value: Any, ratio: float) -> Any:
    """Return a number or a list of them, multiplied; whole numbers are ints."""
    if isinstance(value, (list, tuple)):
        return type(value)(scaled(item, ratio) for item in value)
    return to_integer(value * ratio)
