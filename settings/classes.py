"""Model settings that depend on the classes of the dataset."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from colonnade.common.errors import UserError

from .pipeline_steps import name_of

#: heads that predict something other than the classes of the dataset, such as borders or words
OTHER_CLASSES = ('STDCHead', 'GroundingDINOHead', 'ATSSVLFusionHead', 'SideAdapterCLIPHead')
#: config keys of the heads that predict the classes of the dataset
CLASS_HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'panoptic_head',
               'panoptic_fusion_head')


def class_heads(value: Any, name: str = 'model') -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the config keys and settings of the heads that classify."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from class_heads(item, f'{name}[{index}]')
    elif isinstance(value, dict):
        if name.rpartition('.')[2].partition('[')[0] in CLASS_HEADS and key_of_classes(value):
            yield name, value
        for key, item in value.items():
            yield from class_heads(item, f'{name}.{key}')


def heads_of_all_classes(model: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield those of :func:`class_heads` that predict all classes of the dataset."""
    for name, head in class_heads(model):
        if not head.get('class_agnostic') and name_of(head.get('type')) not in OTHER_CLASSES:
            yield name, head


def key_of_classes(head: dict[str, Any]) -> str:
    """Return the key of the number of classes, or an empty string if there is none."""
    return next((key for key in ('num_classes', 'num_things_classes') if key in head), '')


def num_classes_of(head: dict[str, Any]) -> int:
    """Return the number of classes, things and stuff, without "no object"."""
    return head[key_of_classes(head)] + head.get('num_stuff_classes', 0)


def _iter_class_weights(head: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    for name, loss in head.items():
        weights = loss.get('class_weight') if isinstance(loss, dict) else None
        if isinstance(weights, (list, tuple)):
            yield name, list(weights)


def for_num_classes(head: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """Return the settings that make a head predict another number of classes.

    Class weights of losses are cut, or the last one is repeated. An additional weight after those
    of the classes is the one of "no object".

    Raises:
        ValueError: If the head is panoptic.
    """
    old = num_classes_of(head)
    if head.get('num_stuff_classes'):
        raise UserError(
            f'{head.get("type")} predicts {head["num_things_classes"]} things and '
            f'{head["num_stuff_classes"]} stuff classes: use a config of instance segmentation')
    changes: dict[str, Any] = {key_of_classes(head): num_classes}
    for name, weights in _iter_class_weights(head):
        padded = weights[:old] + weights[old - 1:old] * num_classes
        changes[name] = dict(class_weight=padded[:num_classes] + weights[old:])
    return changes


def with_num_classes(model: Any, num_classes: int) -> Any:
    """Return the settings that make a model predict another number of classes; None if none does.

    Raises:
        ValueError: If a head is panoptic or has different weights per class.
    """
    if isinstance(model, dict):
        changes = {key: with_num_classes(value, num_classes) for key, value in model.items()}
        changes = {key: value for key, value in changes.items() if value is not None}
        if not key_of_classes(model):
            return changes or None
        for name, weights in _iter_class_weights(model):
            if len(set(weights[:num_classes_of(model)])) != 1:
                raise UserError(f'{model.get("type")}.{name}.class_weight differs between classes: '
                                'remove it, and set it for your classes afterwards')
        return changes | for_num_classes(model, num_classes)
    if isinstance(model, list) and any(with_num_classes(item, num_classes) for item in model):
        # A list in a config replaces the list of its base, so it has to be complete.
        return [merged(item, with_num_classes(item, num_classes) or {}) for item in model]
    return None


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of nested settings, updated recursively."""
    return settings | {
        key: merged(settings[key], value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
