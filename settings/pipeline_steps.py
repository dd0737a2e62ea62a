"""Pipeline steps: their names, and which of them load, pack or are custom code."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.registry import TRANSFORMS

from .registries import find_class, get_bases, is_custom_class

#: words in the names of steps that pack what was loaded into samples
PACKING = ('Pack', 'Format', 'Collect', 'Branch')


def get_type_name(kind: Any) -> str:
    """Return the name of a type or class without its library, or an empty string."""
    if kind is None:
        return ''
    return (kind if isinstance(kind, str) else getattr(kind, '__name__', '')).rpartition('.')[2]


def get_step_type(step: dict[str, Any]) -> str:
    """Return the type of a step without its library."""
    return get_type_name(step.get('type'))


def is_loading_annotations(step: dict[str, Any]) -> bool:
    """Return True if a step loads annotations, by its name or base class."""
    kind = get_step_type(step)
    return 'Load' in kind and 'Annotation' in kind or LoadAnnotations in get_bases(
        find_class(step.get('type'), TRANSFORMS))


def is_packing(step: dict[str, Any]) -> bool:
    """Return True if a step is_packing samples, by its name or that of a base class."""
    names = [base.__name__ for base in get_bases(find_class(step.get('type'), TRANSFORMS))]
    return any(word in name for name in (get_step_type(step), *names) for word in PACKING)


def iter_steps(steps: Any) -> Iterator[dict[str, Any]]:
    """Yield all steps of a pipeline, including steps nested in settings of other steps."""
    if isinstance(steps, (list, tuple)):
        for step in steps:
            yield from iter_steps(step)
    elif isinstance(steps, dict):
        if 'type' in steps:
            yield steps
        for value in steps.values():
            yield from iter_steps(value)


def find_custom_steps(steps: Any) -> list[str]:
    """Return the types of all steps, also nested ones, that are custom classes."""
    return [
        get_step_type(step) for step in iter_steps(steps)
        if is_custom_class(find_class(step['type'], TRANSFORMS))
    ]


def find_custom_loader(steps: Any) -> dict[str, Any] | None:
    """Return the first step if it loads images in another way than mmcv, else None."""
    first = steps[0] if steps else None
    if not isinstance(first, dict) or find_class(first.get('type'),
                                                 TRANSFORMS) is LoadImageFromFile:
        return None
    return first
