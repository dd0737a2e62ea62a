"""The parts of a model that depend on the classes of the data."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from colonnade.common.errors import UserError

from .pipeline_steps import name_of

#: heads whose classes are not the data set's: borders, words
OTHER_CLASSES = ('STDCHead', 'GroundingDINOHead', 'ATSSVLFusionHead', 'SideAdapterCLIPHead')
#: parts of a model whose classes are the data set's
CLASS_HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'panoptic_head',
               'panoptic_fusion_head')


def class_heads(value: Any, name: str = 'model') -> Iterator[tuple[str, dict[str, Any]]]:
    """The parts of a model that tell a data set's classes apart, with their names."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from class_heads(item, f'{name}[{index}]')
    elif isinstance(value, dict):
        kind = name.rpartition('.')[2].partition('[')[0]
        if kind in CLASS_HEADS and key_of_classes(value):
            yield name, value
        for key, item in value.items():
            yield from class_heads(item, f'{name}.{key}')


def heads_of_all_classes(model: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of :func:`class_heads` whose classes are all that the data set has."""
    for name, head in class_heads(model):
        if not head.get('class_agnostic') and name_of(head.get('type')) not in OTHER_CLASSES:
            yield name, head


def key_of_classes(part: dict[str, Any]) -> str:
    """The setting that says how many classes a part of a model knows; empty if there is none."""
    return next((key for key in ('num_classes', 'num_things_classes') if key in part), '')


def num_classes_of(part: dict[str, Any]) -> int:
    """How many classes a part of a model knows, things and stuff, without "no object"."""
    return part[key_of_classes(part)] + part.get('num_stuff_classes', 0)


def weights_of_classes(part: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """The losses of a part of a model that weigh each class, and the weights."""
    for name, loss in part.items():
        weights = loss.get('class_weight') if isinstance(loss, dict) else None
        if isinstance(weights, (list, tuple)):
            yield name, list(weights)


def for_num_classes(part: dict[str, Any], number: int) -> dict[str, Any]:
    """What a part of a model must say to know ``number`` classes.

    Weights of classes in its losses are cut, or the last is repeated. One that stands behind those
    of the classes is that of "no object".

    Raises:
        ValueError: If it tells things from stuff.
    """
    old, key = num_classes_of(part), key_of_classes(part)
    if part.get('num_stuff_classes'):
        raise UserError(f'{part.get("type")} tells {part["num_things_classes"]} things from '
                        f'{part["num_stuff_classes"]} kinds of stuff: take a config for instances')
    changes: dict[str, Any] = {key: number}
    for name, weights in weights_of_classes(part):
        of_classes = (weights[:old] + weights[old - 1:old] * number)[:number]
        changes[name] = dict(class_weight=of_classes + weights[old:])
    return changes


def with_num_classes(model: Any, number: int) -> Any:
    """The part of ``model`` that depends on the classes, for ``number`` others; None if none does.

    Raises:
        ValueError: If it cannot be for others: it tells things from stuff, or weighs each class.
    """
    if isinstance(model, dict):
        changed = {key: with_num_classes(value, number) for key, value in model.items()}
        changed = {key: value for key, value in changed.items() if value is not None}
        if not key_of_classes(model):
            return changed or None
        for name, weights in weights_of_classes(model):
            if len(set(weights[:num_classes_of(model)])) != 1:
                raise UserError(f'{model.get("type")}.{name}.class_weight differs from class to '
                                'class: remove it, and set it for your classes afterwards')
        return changed | for_num_classes(model, number)
    if isinstance(model, list) and any(with_num_classes(item, number) for item in model):
        # lists of a base config are replaced as a whole
        return [merged(item, with_num_classes(item, number) or {}) for item in model]
    return None


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Settings with changes that reach into them."""
    return dict(
        settings, **{
            key: merged(settings[key], value) if isinstance(value, dict) else value
            for key, value in changes.items()
        })
