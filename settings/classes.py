"""Model settings that depend on the classes of the dataset."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from colonnade.common.errors import UserError

from .pipeline_steps import get_type_name

#: heads that predict something other than the classes of the dataset, such as borders or words
OTHER_CLASSES = ('STDCHead', 'GroundingDINOHead', 'ATSSVLFusionHead', 'SideAdapterCLIPHead')
#: config keys of the heads that predict the classes of the dataset
CLASS_HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'panoptic_head',
               'panoptic_fusion_head')


def iter_class_heads(value: Any, name: str = 'model') -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the config keys and settings of the heads that classify."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from iter_class_heads(item, f'{name}[{index}]')
    elif isinstance(value, dict):
        is_head = name.rpartition('.')[2].partition('[')[0] in CLASS_HEADS
        if (is_head and get_class_count_key(value)) or 'num_stuff_classes' in value:
            yield name, value
        for key, item in value.items():
            yield from iter_class_heads(item, f'{name}.{key}')


def iter_dataset_heads(model: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield those of :func:`iter_class_heads` that predict all classes of the dataset."""
    for name, head in iter_class_heads(model):
        if not head.get('class_agnostic') and get_type_name(head.get('type')) not in OTHER_CLASSES:
            yield name, head


def get_class_count_key(head: dict[str, Any]) -> str:
    """Return the key of the number of classes, or an empty string if there is none."""
    return next((key for key in ('num_classes', 'num_things_classes') if key in head), '')


def get_num_classes(head: dict[str, Any]) -> int:
    """Return the number of classes, things and stuff, without "no object"."""
    return head[get_class_count_key(head)] + head.get('num_stuff_classes', 0)


def _iter_class_weights(head: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    for name, loss in head.items():
        weights = loss.get('class_weight') if isinstance(loss, dict) else None
        if isinstance(weights, (list, tuple)):
            yield name, list(weights)


def build_class_changes(head: dict[str, Any],
                        num_classes: int,
                        num_things: int | None = None) -> dict[str, Any]:
    """Return the settings that make a head predict another number of classes.

    Class weights of losses are cut, or the last one is repeated. An additional weight after those
    of the classes is the one of "no object".

    Args:
        num_things: Number of these classes that are things, which come first. None for instances.

    Raises:
        ValueError: If the head is panoptic, and ``num_things`` is None.
    """
    old = get_num_classes(head)
    if head.get('num_stuff_classes') and num_things is None:
        raise UserError(f'{head.get("type")} predicts panoptic segments (num_stuff_classes='
                        f'{head["num_stuff_classes"]}): use an instance segmentation config')
    changes: dict[str, Any] = {}
    if num_things is not None and 'num_stuff_classes' in head:
        changes['num_stuff_classes'] = num_classes - num_things
    elif num_things is not None:  # a head of things, next to a head of stuff
        num_classes = num_things
    changes[get_class_count_key(head)] = num_classes - changes.get('num_stuff_classes', 0)
    for name, weights in _iter_class_weights(head):
        padded = weights[:old] + weights[old - 1:old] * num_classes
        changes[name] = dict(class_weight=padded[:num_classes] + weights[old:])
    return changes


def adapt_num_classes(model: Any, num_classes: int, num_things: int | None = None) -> Any:
    """Return the settings that make a model predict another number of classes; None if none does.

    Args:
        num_things: See :func:`build_class_changes`.

    Raises:
        ValueError: If a head has different weights per class, or see :func:`build_class_changes`.
    """
    if isinstance(model, dict):
        changes = {
            key: adapt_num_classes(value, num_classes, num_things)
            for key, value in model.items()
        }
        changes = {key: value for key, value in changes.items() if value is not None}
        if not get_class_count_key(model):
            return changes or None
        for name, weights in _iter_class_weights(model):
            if len(set(weights[:get_num_classes(model)])) != 1:
                raise UserError(f'{model.get("type")}.{name}.class_weight differs between classes: '
                                'remove it, and set it for your classes afterwards')
        return changes | build_class_changes(model, num_classes, num_things)
    if isinstance(model, list):
        items = [adapt_num_classes(item, num_classes, num_things) for item in model]
        # A list in a config replaces the list of its base, so it has to be complete.
        return [merged(*each)
                for each in zip(model, (item or {}
                                        for item in items), strict=True)] if any(items) else None
    return None


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of nested settings, updated recursively."""
    return settings | {
        key: merged(settings[key], value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
