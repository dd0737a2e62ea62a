"""What the steps of a data set's pipeline are called, and which of them load something."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.registry import TRANSFORMS

from .registries import bases_of, find_class, is_users

#: what steps that make samples of what is loaded are called
PACKING = ('Pack', 'Format', 'Collect', 'Branch')


def name_of(kind: Any) -> str:
    """The name of a type without its library, also of a class; empty if there is none."""
    if kind is None:
        return ''
    return (kind if isinstance(kind, str) else getattr(kind, '__name__', '')).rpartition('.')[2]


def kind_of_step(step: dict[str, Any]) -> str:
    """The name of a step of a pipeline, without its library."""
    return name_of(step.get('type'))


def loads_annotations(step: dict[str, Any]) -> bool:
    """Whether a step loads annotations: by its name, or by its class, which may extend mmcv's."""
    kind = kind_of_step(step)
    if 'Load' in kind and 'Annotation' in kind:
        return True
    return LoadAnnotations in bases_of(find_class(step.get('type'), TRANSFORMS))


def packs(step: dict[str, Any]) -> bool:
    """Whether a step makes samples of what is loaded: by its name, or by that of a base."""
    names = [base.__name__ for base in bases_of(find_class(step.get('type'), TRANSFORMS))]
    return any(word in name for name in (kind_of_step(step), *names) for word in PACKING)


def every_step(steps: Any) -> Iterator[dict[str, Any]]:
    """The steps of a pipeline, also those within other steps, in whatever settings."""
    if isinstance(steps, (list, tuple)):
        for step in steps:
            yield from every_step(step)
    elif isinstance(steps, dict):
        if 'type' in steps:
            yield steps
        for value in steps.values():
            yield from every_step(value)


def users_steps(steps: Any) -> list[str]:
    """The names of steps whose classes are a user's, also of those within other steps."""
    return [
        kind_of_step(step) for step in every_step(steps)
        if is_users(find_class(step['type'], TRANSFORMS))
    ]


def loading_step(steps: Any) -> dict[str, Any] | None:
    """The first step if it loads images in a way of its own, not as mmcv does; else None."""
    first = steps[0] if steps else None
    if not isinstance(first, dict) or find_class(first.get('type'),
                                                 TRANSFORMS) is LoadImageFromFile:
        return None
    return first
