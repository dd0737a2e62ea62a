"""What the steps of a data set's pipeline are called, and which of them load something."""
from __future__ import annotations

import inspect
from typing import Any

from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.registry import TRANSFORMS

from .registries import find_class


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
    cls = find_class(step.get('type'), TRANSFORMS)
    return inspect.isclass(cls) and issubclass(cls, LoadAnnotations)


def loading_step(steps: Any) -> dict[str, Any] | None:
    """The first step if it loads images in a way of its own, not as mmcv does; else None."""
    first = steps[0] if steps else None
    if not isinstance(first, dict) or find_class(first.get('type'),
                                                 TRANSFORMS) is LoadImageFromFile:
        return None
    return first
