"""Settings of heads that depend on their feature maps: indices, widths and strides."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.registry import MODELS

from colonnade.models.feature_maps import Map, to_integer
from colonnade.settings.checks.head_widths import compute_fpn_head_strides
from colonnade.settings.known_settings import get_argument_names, get_arguments
from colonnade.settings.registries import find_class

from .config_changes import Notes

#: settings with strides of feature maps, or sizes that are proportional to them
STRIDES = ('strides', 'featmap_strides', 'point_strides', 'finest_scale')


def _iter_heads(value: Any, path: str = 'model', *, top: bool = True) -> Iterator[tuple[str, dict]]:
    """Yield keys and settings of everything that reads feature maps of the backbone or neck.

    These are the heads of the model, and nested modules with an ``in_index`` of their own.
    """
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        name = f'{path}[{key}]' if isinstance(key, int) else f'{path}.{key}'
        if key in ('backbone', 'neck') or not isinstance(item, (dict, list)):
            continue
        is_head = top and (isinstance(key, int) or key.endswith('_head'))
        if isinstance(item, dict) and 'in_channels' in item and (is_head or 'in_index' in item):
            yield name, item
        yield from _iter_heads(item, name, top=is_head and isinstance(item, list))


def _get_indices(head: dict[str, Any], num_maps: int) -> list[int]:
    """Return the indices of the feature maps that a head reads, in its order."""
    is_list = isinstance(head['in_channels'], (list, tuple))
    has_index = 'in_index' in (get_argument_names(find_class(head.get('type'), MODELS)) or ())
    default = list(range(num_maps)) if is_list or not has_index else -1
    in_index = head.get('in_index', default)
    return [i % num_maps for i in (in_index if isinstance(in_index, (list, tuple)) else [in_index])]


def get_read_indices(model: dict[str, Any], num_maps: int) -> list[int]:
    """Return the indices of the feature maps that any head reads."""
    indices = set()
    for _, head in _iter_heads(model):
        indices |= {*_get_indices(head, num_maps), *([0] if head.get('c1_in_channels') else [])}
    return sorted(indices) or list(range(num_maps))


def adapt_heads(model: dict[str, Any], before: Sequence[Map], after: Sequence[Map], used: list[int],
                notes: Notes) -> None:
    """Set the indices and widths of the feature maps that the heads read.

    Args:
        model: Model config, modified in place.
        before: Feature maps that the heads got so far.
        after: Feature maps that they will get.
        used: Indices in ``before`` of the maps in ``after``.
        notes: Notes, to which mismatches are added.
    """
    for name, head in _iter_heads(model):
        indices = _get_indices(head, len(before))
        is_list = isinstance(head['in_channels'], (list, tuple))
        widths = [before[index].width for index in indices]
        stated = list(head['in_channels']) if is_list else [head['in_channels']] * len(indices)
        if stated != widths:
            notes.add_open_question(f'{name}.in_channels is {head["in_channels"]}, but its feature '
                                    f'maps had widths {widths}: it is unchanged')
            continue
        new_indices = [used.index(index) for index in indices]
        widths = [after[index].width for index in new_indices]
        head['in_channels'] = widths if is_list else widths[0]
        if head.get('c1_in_channels'):
            head['c1_in_channels'] = after[0].width
        in_index = head.get('in_index')
        if isinstance(in_index, (list, tuple)):
            head['in_index'] = new_indices
        elif in_index is not None:
            head['in_index'] = new_indices[0] if in_index >= 0 else new_indices[0] - len(used)


def scale_strides(value: Any, ratio: float, path: str, notes: Notes) -> None:
    """Multiply the strides in the settings and defaults of heads, for another patch size."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            scale_strides(item, ratio, f'{path}[{index}]', notes)
    if not isinstance(value, dict):
        return
    cls: Any = find_class(value.get('type'))
    defaults = get_arguments(cls) if isinstance(cls, type) else None
    for key, item in ((defaults or {}) | value).items():
        if key in STRIDES and isinstance(item, (list, tuple, int, float)):
            value[key] = _multiply(item, ratio)
        elif key == 'feature_strides' and isinstance(item, (list, tuple)):  # mmseg's FPNHead
            value[key] = compute_fpn_head_strides(_multiply(item, ratio))
        elif key.endswith('_stride') and isinstance(item, (int, float)):
            notes.add_open_question(f'{path}.{key} is {item}, but strides are multiplied by '
                                    f'{ratio:g}: it is unchanged')
        elif key not in ('backbone', 'neck'):
            scale_strides(item, ratio, f'{path}.{key}', notes)


def _multiply(value: Any, ratio: float) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_multiply(item, ratio) for item in value)
    return to_integer(value * ratio)
