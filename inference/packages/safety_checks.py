"""What an untrusted config may name: what :mod:`.allowed` lists, and no module, file or URL.

Plain values are not enough. mmengine imports and calls whatever a ``type`` names if no registry
knows it. Parts of mmdet and mmcv evaluate strings. Others read files that strings name, or ask a
hub for weights.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from colonnade.backbones import BACKBONES
from colonnade.backbones.plain_vit.architectures import list_known_models
from colonnade.settings.plain_config import PackageError
from colonnade.settings.reading import LIBRARIES
from colonnade.settings.registries import REGISTRIES
from colonnade.weights.mmengine_loaders import OUR_IMPORTS, is_module, is_module_name

from .allowed import (INITIALIZERS, MAX_NUMBER, MAX_NUMBERS, MAX_SIDE, MODEL_TYPES, OTHER_TYPES,
                      STEPS, VALUES, WORD_STARTS, WORDS)

TRUST = 'If you trust who made it, load it with trust=True, or --trust'
#: types that mmdet and mmcv look up in mmcv.ops, without a registry
OPERATORS = ('RoIAlign', 'RoIPool', 'SimpleRoIAlign', 'nms', 'soft_nms')
#: what data sets read as paths or show as text, and no registry gets
TEXTS = ('metainfo', 'ann_file', 'data_root', 'data_prefix')
#: what :func:`values_of` calls a setting that a step of a pipeline is not told
UNKNOWN_SETTING = 'unknown setting'


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
    """Raise a PackageError for a value that :mod:`.allowed` does not list.

    Args:
        values: Of a config whose imports are done.
        source: Name of its file.
    """
    scope = values['default_scope']
    for name, key, value, limit in values_of(values):
        if problem := problem_of(name, key, value, scope, limit):
            shown = repr(value)
            shown = shown if len(shown) <= 80 else f'{shown[:80]}...'
            raise PackageError(f'{source}: {name} is {shown}, {problem}. {TRUST}')


def problem_of(name: str, key: str, value: Any, scope: str, limit: float) -> str:
    """Return why a value is not permitted, or an empty string.

    Args:
        name: Its place in the config.
        key: The last key on the way to it; empty for a key itself.
        value: A key, or a value that is neither a dict nor a list.
        scope: Library of types without one.
        limit: The largest number that is permitted there.
    """
    if key == UNKNOWN_SETTING:
        return 'and a config of others may not set it'
    if key in VALUES and not any(value is each for each in VALUES[key]):
        return f'and only {" or ".join(map(repr, VALUES[key]))} is permitted'
    if not isinstance(value, str):
        is_size = type(value) is int or (type(value) is float and limit != MAX_NUMBER)
        is_small = not is_size or not is_built(name) or abs(value) <= limit
        return '' if is_small else f'and at most {limit} is permitted'
    if '.init_cfg' in name:  # dropped before anything is built, but other tools may read it
        is_known = value in INITIALIZERS if key == 'type' else value.isidentifier()
        return '' if is_known else 'which is not an initializer without a file'
    if key == 'type':
        types = STEPS if 'pipeline' in name else MODEL_TYPES if is_built(name) else OTHER_TYPES
        if value.rpartition('.')[2] not in types:
            return 'which is not on the list of types that a config of others may build'
        if not is_registered(value, scope):
            return 'which mmengine, mmdet, mmseg and colonnade do not register'
    elif key == '_scope_':
        return '' if value in (*LIBRARIES, 'mmengine') else 'which is not a known library'
    elif is_module_name(value):
        return 'which is the name of a module'
    elif is_built(name) and not is_word(key, value):
        return 'which is not on the list of texts that a config of others may use'
    return ''


def is_word(key: str, text: str) -> bool:
    """Return True if a text may be part of a model or a pipeline.

    Args:
        key: The key that it is the value of; empty for a key itself.
        text: Of a config.
    """
    if not key:
        return text.isidentifier()
    if key in ('arch', 'model') and is_architecture(text):
        return True
    return text in WORDS or (text.isidentifier() and text.startswith(WORD_STARTS))


def is_architecture(text: str) -> bool:
    """Return True if a text names an architecture of Colonnade's backbones."""
    tables = [backbone.variants.rows for backbone in BACKBONES.values()]
    name, _, tag = text.partition('.')
    return any(text in rows for rows in tables) or (name in list_known_models() and
                                                    (not tag or tag.isidentifier()))


def values_of(value: Any,
              name: str = '',
              key: str = '',
              limit: float = MAX_NUMBER) -> Iterator[tuple[str, str, Any, float]]:
    """Yield the keys and values in a config: place, last key, value and the largest number there.

    Args:
        value: Of the config, or of a part of it.
        name: Its place.
        key: The last key on the way to it.
        limit: The largest number that is permitted in it.
    """
    if isinstance(value, Mapping):
        step = str(value.get('type')).rpartition('.')[2]
        for inner, item in value.items():
            whole = f'{name}.{inner}' if name else str(inner)
            if whole in ('custom_imports', 'default_scope') or (inner in TEXTS
                                                                and not is_built(whole)):
                continue
            if 'pipeline' in name and step in STEPS and inner not in (*STEPS[step], 'type'):
                yield whole, UNKNOWN_SETTING, item, limit
            most = MAX_NUMBERS.get(inner, MAX_SIDE if 'pipeline' in whole else limit)
            if isinstance(inner, str):
                yield whole, '', inner, limit
            yield from values_of(item, whole, str(inner), most)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from values_of(item, f'{name}[{index}]', key, limit)
    else:
        yield name, key, value, limit


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
