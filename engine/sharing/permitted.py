"""What a config of somebody else's may name: registered classes, and no module, file or URL.

Plain values are not enough. mmengine imports and calls whatever a ``type`` names if no registry
knows it. Parts of mmdet and mmcv evaluate strings. Others read files that strings name: pickles, or
configs, which are run.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from colonnade.weights.openmmlab import OUR_IMPORTS, is_module, names_a_module

from ..launch import LIBRARIES
from ..registries import REGISTRIES
from .plain_config import PackageError

TRUST = 'If you trust who made it, load it with trust=True, or --trust'
#: strings in models and pipelines: names, so neither expressions nor paths
NAME = re.compile(r'[\w .,+-]*', re.ASCII)
#: types that mmdet and mmcv look up in mmcv.ops, without a registry
OPERATORS = ('RoIAlign', 'RoIPool', 'SimpleRoIAlign', 'nms', 'soft_nms')
CONFIG_FILES = ('.py', '.json', '.yaml', '.yml')
#: what data sets read as paths or show as text, and no registry gets
TEXTS = ('metainfo', 'ann_file', 'data_root', 'data_prefix')


def check_imports(values: Mapping[str, Any], source: str) -> None:
    """Raise a PackageError if a config imports other packages than ours, mmdet and mmseg."""
    imports = values.get('custom_imports') or {}
    names = imports.get('imports') if isinstance(imports, Mapping) else None
    names = [names] if isinstance(names, str) else names or []
    for name in names:
        if not isinstance(name, str) or name.split('.')[0] not in OUR_IMPORTS:
            raise PackageError(f'{source}: custom_imports names {name!r}, and only modules of '
                               f'{", ".join(OUR_IMPORTS)} are imported. {TRUST}')


def check_names(values: Mapping[str, Any], source: str) -> None:
    """Raise a PackageError for a value that would bring in more than registered classes.

    Args:
        values: Of a config whose imports are done.
        source: Name of its file.
    """
    scope = values['default_scope']
    for name, key, text in strings_of(values):
        problem = ''
        if key == 'type':
            if not is_registered(text, scope):
                problem = 'no class that mmengine, mmdet, mmseg or colonnade registers'
        elif key == '_scope_':
            if text not in (*LIBRARIES, 'mmengine'):
                problem = 'no library that we know'
        elif names_a_module(text):
            problem = 'the name of a module'
        elif is_built(name):
            if not NAME.fullmatch(text) or text.endswith(CONFIG_FILES):
                problem = 'more than a name'
            elif text and key and Path(text).is_file():  # timm, for one, unpickles such
                problem = 'the name of a file in this folder'
        if problem:
            raise PackageError(f'{source}: {name} is {text[:80]!r}, which is {problem}. {TRUST}')


def strings_of(value: Any, name: str = '', key: str = '') -> Iterator[tuple[str, str, str]]:
    """The strings in a config, each with its whole name and its last key; keys are such too."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            whole = f'{name}.{inner}' if name else str(inner)
            if whole in ('custom_imports', 'default_scope') or (inner in TEXTS
                                                                and not is_built(whole)):
                continue
            if isinstance(inner, str):
                yield whole, '', inner
            yield from strings_of(item, whole, str(inner))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from strings_of(item, f'{name}[{index}]', key)
    elif isinstance(value, str):
        yield name, key, value


def is_built(name: str) -> bool:
    """Whether what is at a name becomes a part of a model or a step of a pipeline."""
    return name.startswith('model.') or 'pipeline' in name


def is_registered(kind: str, scope: str) -> bool:
    """Whether a type is known, so that no module of its name is imported to find it.

    Args:
        kind: With its library (``mmdet.FPN``) or without.
        scope: Library of those without.
    """
    library, _, name = kind.rpartition('.')
    library = library or scope
    if library not in LIBRARIES or is_module(kind):
        return False
    if kind in OPERATORS:
        return True
    import_module(f'{library}.registry')
    for root in REGISTRIES:
        for registry in (root.children.get(library), root):
            if registry is None:
                continue
            registry.import_from_location()
            if name in registry.module_dict:
                return True
    return False
