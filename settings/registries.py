"""Lookup of the ``type`` of config sections, without building them."""
from __future__ import annotations

import inspect
import sys
from difflib import get_close_matches
from traceback import walk_tb
from typing import Any

from mmengine import registry
from mmengine.registry import DefaultScope, Registry
from mmengine.utils import get_object_from_string

from colonnade.common.name_lists import ask_for_names

REGISTRIES = tuple(value for value in vars(registry).values() if isinstance(value, Registry))
#: packages whose classes do what their names and signatures say
LIBRARIES = ('colonnade', 'mmcv', 'mmdet', 'mmengine', 'mmseg', 'torch')
#: dependencies of these packages
DEPENDENCIES = ('PIL', 'cv2', 'faster_coco_eval', 'numpy', 'pycocotools', 'safetensors', 'scipy',
                'timm', 'torchvision')


def find_class(kind: Any, *registries: Registry) -> Any:
    """Return the class of a ``type``, or None if it is unknown.

    Args:
        kind: Name, with or without library (``mmdet.FPN``) or with all modules. A class is
            returned unchanged.
        registries: Registries of mmengine to search. Their children in the default scope come
            first. Defaults to all.
    """
    if not isinstance(kind, str):
        return kind
    if kind.count('.') > 1 and (found := import_object(kind)) is not None:
        return found  # pure Python configs name classes by all their modules
    current = DefaultScope.get_current_instance()
    scope, _, name = kind.rpartition('.')
    scope = scope or (current.scope_name if current else '')
    candidates = [
        candidate for registered in registries or REGISTRIES
        for candidate in (registered.children.get(scope), registered) if candidate is not None
    ]
    for candidate in candidates:  # registered classes first, since get() imports modules
        candidate.import_from_location()
        if name in candidate.module_dict:
            return candidate.module_dict[name]
    for candidate in candidates:
        if is_known(name, candidate):
            return candidate.get(name)
    return import_object(kind) if '.' in kind else None


def import_object(name: str) -> Any:
    """Return the object with a fully qualified name, or None."""
    return get_object_from_string(name) if may_be_name(name) else None


def may_be_name(text: str) -> bool:
    """Return True if a string can be looked up: no part between dots is empty."""
    return all(text.split('.')) and '\0' not in text


def get_package(cls: Any) -> str:
    """Return the package of a class or function, or an empty string."""
    return str(getattr(cls, '__module__', '')).partition('.')[0]


def get_bases(cls: Any) -> tuple[type, ...]:
    """Return a class and all its bases, or nothing for what is not a class."""
    return inspect.getmro(cls) if inspect.isclass(cls) else ()


def is_custom_class(cls: Any) -> bool:
    """Return True if a class or function is custom code, which may do anything."""
    return get_package(cls) not in ('', *LIBRARIES)


def is_from_user_code(error: BaseException) -> bool:
    """Return True if the traceback of an error leads through custom code."""
    known = {*LIBRARIES, *DEPENDENCIES, *sys.stdlib_module_names}
    modules = (frame.f_globals.get('__name__', '') for frame, _ in walk_tb(error.__traceback__))
    return any(name.partition('.')[0] not in known for name in modules)


def is_known(kind: str, registry: Registry) -> bool:
    """Return True if a registry or its parents have a type."""
    try:
        return may_be_name(kind) and registry.get(kind) is not None
    except RuntimeError:  # the module of the type cannot be imported
        return False


def loaded_scopes() -> set[str]:
    """Return the libraries whose types are registered by now."""
    return {child for parent in REGISTRIES for child in (parent.scope, *parent.children)}


def format_unknown_type(name: str) -> str:
    """Return the message for an unknown type, with similar types that are registered."""
    loaded = [child for parent in REGISTRIES for child in (parent, *parent.children.values())]
    types = {known.lower(): known for each in loaded for known in sorted(each.module_dict)}
    near = [types[low] for low in get_close_matches(name.lower(), types, n=3, cutoff=0.7)]
    meant = '; ' + ask_for_names(near) if near else ''
    return f'the type {name if may_be_name(name) else repr(name)} is not known{meant}'
