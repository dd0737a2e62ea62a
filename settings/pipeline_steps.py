"""Pipeline steps: their names, and which of them load, pack or are custom code."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.registry import TRANSFORMS

from .registries import bases_of, find_class, is_users

#: words in the names of steps that pack what was loaded into samples
PACKING = ('Pack', 'Format', 'Collect', 'Branch')


def name_of(kind: Any) -> str:
    """Return the name of a type or class without its library, or an empty string."""
    if kind is None:
        return ''
    return (kind if isinstance(kind, str) else getattr(kind, '__name__', '')).rpartition('.')[2]


def kind_of_step(step: dict[str, Any]) -> str:
    """Return the type of a step without its library."""
    return name_of(step.get('type'))


def loads_annotations(step: dict[str, Any]) -> bool:
    """Return True if a step loads annotations, by its name or base class."""
    kind = kind_of_step(step)
    return 'Load' in kind and 'Annotation' in kind or LoadAnnotations in bases_of(
        find_class(step.get('type'), TRANSFORMS))


def packs(step: dict[str, Any]) -> bool:
    """Return True if a step packs samples, by its name or that of a base class."""
    names = [base.__name__ for base in bases_of(find_class(step.get('type'), TRANSFORMS))]
    return any(word in name for name in (kind_of_step(step), *names) for word in PACKING)


def every_step(steps: Any) -> Iterator[dict[str, Any]]:
    """Yield all steps of a pipeline, including steps nested in settings of other steps."""
    if isinstance(steps, (list, tuple)):
        for step in steps:
            yield from every_step(step)
    elif isinstance(steps, dict):
        if 'type' in steps:
            yield steps
        for value in steps.values():
            yield from every_step(value)


def users_steps(steps: Any) -> list[str]:
    """Return the types of all steps, also nested ones, that are custom classes."""
    return [
        kind_of_step(step) for step in every_step(steps)
        if is_users(find_class(step['type'], TRANSFORMS))
    ]


def loading_step(steps: Any) -> dict[str, Any] | None:
    """Return the first step if it loads images in another way than mmcv, else None."""
    first = steps[0] if steps else None
    if not isinstance(first, dict) or find_class(first.get('type'),
                                                 TRANSFORMS) is LoadImageFromFile:
        return None
    return first
