"""What a config's ``type`` stands for, without building it."""
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
#: packages that these call
BELOW = ('PIL', 'cv2', 'faster_coco_eval', 'numpy', 'pycocotools', 'safetensors', 'scipy', 'timm',
         'torchvision')


def find_class(kind: Any, *registries: Registry) -> Any:
    """The class that a ``type`` names; None if there is none.

    Args:
        kind: A name, with or without its library (``mmdet.FPN``), with all its modules, or a class,
            which is returned.
        registries: Of mmengine, whose children in the default scope are looked at first; all if not
            given.
    """
    if not isinstance(kind, str):
        return kind
    if kind.count('.') > 1 and (found := imported(kind)) is not None:
        return found  # as texts of Python configs name classes
    current = DefaultScope.get_current_instance()
    scope, _, name = kind.rpartition('.')
    scope = scope or (current.scope_name if current else '')
    candidates = [
        candidate for registered in registries or REGISTRIES
        for candidate in (registered.children.get(scope), registered) if candidate is not None
    ]
    for candidate in candidates:  # of what a library registers: to look further imports modules
        candidate.import_from_location()
        if name in candidate.module_dict:
            return candidate.module_dict[name]
    for candidate in candidates:
        if is_known(name, candidate):
            return candidate.get(name)
    return imported(kind) if '.' in kind else None


def imported(name: str) -> Any:
    """What a name with all its modules leads to; None if nothing, or if it can be no such name."""
    return get_object_from_string(name) if may_be_name(name) else None


def may_be_name(text: str) -> bool:
    """Whether a text can be looked for as a name, of which no part between dots may be empty."""
    return all(text.split('.')) and '\0' not in text


def package_of(cls: Any) -> str:
    """Return the package of a class or function; empty for what has none, such as None."""
    return str(getattr(cls, '__module__', '')).partition('.')[0]


def bases_of(cls: Any) -> tuple[type, ...]:
    """Return a class and all that it extends; nothing for what is not a class."""
    return inspect.getmro(cls) if inspect.isclass(cls) else ()


def is_users(cls: Any) -> bool:
    """Return True if a class is of no library that we know, so that it may do anything.

    Args:
        cls: A class or function that makes a part; None is not a user's.
    """
    return package_of(cls) not in ('', *LIBRARIES)


def runs_user_code(error: BaseException) -> bool:
    """Return True if an error's traceback leads through code of no library that we know."""
    known = {*LIBRARIES, *BELOW, *sys.stdlib_module_names}
    modules = (frame.f_globals.get('__name__', '') for frame, _ in walk_tb(error.__traceback__))
    return any(name.partition('.')[0] not in known for name in modules)


def is_known(kind: str, registry: Registry) -> bool:
    """Whether a registry finds a type, also of its parents."""
    try:
        return may_be_name(kind) and registry.get(kind) is not None
    except RuntimeError:  # of a module that cannot be imported
        return False


def known_types() -> set[str]:
    """The names of all that is registered, in mmengine and the libraries that are loaded."""
    every = [child for found in REGISTRIES for child in (found, *found.children.values())]
    return {name for found in every for name in found.module_dict}


def loaded_scopes() -> set[str]:
    """The libraries whose types are registered by now."""
    return {child for found in REGISTRIES for child in (found.scope, *found.children)}


def unknown_type(name: str) -> str:
    """That a type is not known, and the one that was meant."""
    types = {known.lower(): known for known in known_types()}
    near = [types[low] for low in get_close_matches(name.lower(), types, n=3, cutoff=0.7)]
    meant = '; ' + ask_for_names(near) if near else ''
    shown = name if may_be_name(name) else repr(name)
    return f'the type {shown} is not known{meant}'
