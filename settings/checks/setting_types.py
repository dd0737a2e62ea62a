"""Types and settings of a config: are they known and spelled correctly?"""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mmengine import registry
from mmengine.config import Config
from torch.utils.data import DataLoader

from colonnade.common.name_lists import suggest_names

from ..findings import Finding
from ..known_settings import FREE, TOP, find_parameter, get_known_settings, is_typo
from ..registries import find_class, format_unknown_type, get_package, loaded_scopes, may_be_name
from ..rules import CONFIG_RULES

#: last key of a path -> registries in which a type is looked up; all for other keys
REGISTRIES = {
    **dict.fromkeys(('pipeline', 'transforms'), (registry.TRANSFORMS, )),
    **dict.fromkeys(('dataset', 'datasets'), (registry.DATASETS, )),
    **dict.fromkeys(('val_evaluator', 'test_evaluator'), (registry.METRICS, registry.EVALUATOR)),
    **dict.fromkeys(('default_hooks', 'custom_hooks'), (registry.HOOKS, )),
    **dict.fromkeys(('backbone', 'neck', 'fpn', 'decode_head', 'auxiliary_head', 'rpn_head',
                     'roi_head', 'bbox_head', 'mask_head', 'data_preprocessor'),
                    (registry.MODELS, )),
    'metrics': (registry.METRICS, ),
    'param_scheduler': (registry.PARAM_SCHEDULERS, ),
    'optimizer': (registry.OPTIMIZERS, ),
    'optim_wrapper': (registry.OPTIM_WRAPPERS, ),
    'visualizer': (registry.VISUALIZERS, ),
    'vis_backends': (registry.VISBACKENDS, ),
    'sampler': (registry.DATA_SAMPLERS, registry.TASK_UTILS),
    'batch_sampler': (registry.DATA_SAMPLERS, ),
}  # yapf: disable
#: types and keys whose settings have types of other libraries, or of no registry
FOREIGN = ('Albu', 'roi_layer', 'plugins')


def find_setting_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield unregistered types, settings without effect, and strings in place of numbers.

    Arguments that classes pass on to other classes are not followed.
    """
    content = cfg.to_dict()
    for key in content.keys() - TOP:
        meant = suggest_names(key, TOP, cutoff=0.9)
        if meant and isinstance(content[key], (dict, list)):
            yield Finding('unread-section', f'{key} has no effect', (key, ), meant)
    rules = [name for name, rule in CONFIG_RULES.items() if rule.severity != 'error']
    for name in content.get('accepted_findings') or ():
        if name not in rules:
            yield Finding(
                'setting-type', f'accepted_findings has {name!r}, but only '
                f'{", ".join(rules)} can be accepted', ('accepted_findings', ))
    for path, part in _iter_sections(content):
        yield from _check_section(part, path)


def _iter_sections(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[list[str], dict]]:
    """Yield the paths and content of the dicts that mmengine reads or builds."""
    if isinstance(value, dict):
        if path:
            yield list(path), value
        if value.get('type') in FOREIGN:
            return
        for key, item in value.items():
            if (path or key in TOP) and key not in FREE and key not in FOREIGN:
                yield from _iter_sections(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _iter_sections(item, (*path, str(index)))


def _check_section(part: dict[str, Any], path: list[str]) -> Iterator[Finding]:
    """Check the type and the settings of one dict, without nested dicts."""
    name, kind, registries = '.'.join(path), part.get('type'), _get_registries(path)
    cls = None if kind is None else find_class(kind, *registries)
    if not (kind is None or isinstance(kind, str) or callable(kind)):
        if registries:
            yield Finding('unknown-type',
                          f'{name}.type must be a name or a class, got {kind!r:.80}',
                          (f'{name}.type', ))
        return
    if kind is not None and cls is None:
        scope = str(kind).rpartition('.')[0]
        is_pending = scope and scope not in loaded_scopes() and may_be_name(str(kind))
        if registries and not is_pending:
            yield Finding('unknown-type', f'{name}.type: {format_unknown_type(kind)}',
                          (f'{name}.type', ))
        return
    known = get_known_settings(part if cls is None else {**part, 'type': cls}, path)
    shown = f'{name} ({kind if isinstance(kind, str) else kind.__name__})' if kind else name
    for key, value in part.items():
        if known is not None and key not in known:
            if path[0] == 'model' and get_package(cls) != 'colonnade' and not any(
                    is_typo(key, other) for other in known):
                continue  # some classes read settings before they are built
            meant = suggest_names(key, known - {'type', '_scope_'})
            message = f'{shown} has no setting {key}'
            yield Finding('unknown-setting', f'{message}; {meant}' if meant else message,
                          (f'{name}.{key}', ))
        elif isinstance(value, str) and (default := _find_numeric_default(cls, path,
                                                                          key)) is not None:
            yield Finding('setting-type', f'{name}.{key} must be a number{default}, got {value!r}',
                          (f'{name}.{key}', ))


def _get_registries(path: list[str]) -> tuple[registry.Registry, ...]:
    """Return the registries for the type of a dict at a path; empty if unknown."""
    if path[0] == 'default_hooks':
        return REGISTRIES['default_hooks'] if len(path) == 2 else ()
    return REGISTRIES.get(next(part for part in reversed(path) if not part.isdecimal()), ())


def _find_numeric_default(cls: Any, path: list[str], key: str) -> str | None:
    """Return the default of a setting for a message if it must be a number, else None."""
    if cls is None and path[-1].endswith('_dataloader'):
        cls = DataLoader
    parameter = find_parameter(cls, key)
    if parameter is None:
        return None
    default, annotation = parameter.default, str(parameter.annotation)
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if parameter.annotation is not parameter.empty:
        is_number = bool(re.search(r'\b(int|float)\b', annotation)) and not re.search(
            r'\b(str|dict|Dict|Any|Sequence|Callable|Literal)\b', annotation)
    shown = '' if default in (None, parameter.empty) else f' (default {default})'
    return shown if is_number else None
