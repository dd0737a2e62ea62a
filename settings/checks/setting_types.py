"""Types and settings in a config: known, spelt as their class has them, of the right kind?"""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mmengine import registry
from mmengine.config import Config
from torch.utils.data import DataLoader

from colonnade.common.name_lists import suggest_names

from ..findings import Finding
from ..known_settings import FREE, TOP, is_misspelt, names_read_from, parameter_of
from ..registries import find_class, loaded_scopes, may_be_name, package_of, unknown_type

#: which registries a type is looked up in, by the last name of its path; others in all
REGISTRIES = {
    **dict.fromkeys(('pipeline', 'transforms'), (registry.TRANSFORMS, )),
    **dict.fromkeys(('dataset', 'datasets'), (registry.DATASETS, )),
    **dict.fromkeys(('val_evaluator', 'test_evaluator'), (registry.METRICS, registry.EVALUATOR)),
    **dict.fromkeys(('default_hooks', 'custom_hooks'), (registry.HOOKS, )),
    **dict.fromkeys(('backbone', 'neck', 'fpn', 'decode_head', 'auxiliary_head', 'rpn_head',
                     'roi_head', 'bbox_head', 'mask_head', 'data_preprocessor'),
                    (registry.MODELS, )),
    'param_scheduler': (registry.PARAM_SCHEDULERS, ),
    'optimizer': (registry.OPTIMIZERS, ),
    'optim_wrapper': (registry.OPTIM_WRAPPERS, ),
    'visualizer': (registry.VISUALIZERS, ),
    'vis_backends': (registry.VISBACKENDS, ),
    'sampler': (registry.DATA_SAMPLERS, registry.TASK_UTILS),
    'batch_sampler': (registry.DATA_SAMPLERS, ),
}  # yapf: disable
#: whose types are of other libraries, or of no registry
FOREIGN = ('Albu', 'roi_layer', 'plugins')


def setting_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield types that nothing registers, and settings that nothing reads or that are no numbers.

    What classes pass on to others is not followed.
    """
    content = cfg.to_dict()
    for key in content.keys() - TOP:
        meant = suggest_names(key, TOP, cutoff=0.9)
        if meant and isinstance(content[key], (dict, list)):
            yield Finding('unread-section', f'nothing reads {key}', (key, ), meant)
    for path, part in parts_below(content):
        yield from problems_of_part(part, path)


def parts_below(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[list[str], dict]]:
    """The dicts of a config that are read by mmengine or built, and their paths."""
    if isinstance(value, dict):
        if path:
            yield list(path), value
        if value.get('type') in FOREIGN:
            return
        for key, item in value.items():
            if (path or key in TOP) and key not in FREE and key not in FOREIGN:
                yield from parts_below(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from parts_below(item, (*path, str(index)))


def problems_of_part(part: dict[str, Any], path: list[str]) -> Iterator[Finding]:
    """What is wrong with the settings of one dict, those within it left out."""
    name, kind = '.'.join(path), part.get('type')
    cls = None if kind is None else find_class(kind, *registries_at(path))
    if not (kind is None or isinstance(kind, str) or callable(kind)):
        if registries_at(path):
            says = f'{name}.type must be a name or a class, got {kind!r:.80}'
            yield Finding('unknown-type', says, (f'{name}.type', ))
        return
    if kind is not None and cls is None:
        if is_looked_up(kind, path):
            yield Finding('unknown-type', f'{name}.type: {unknown_type(kind)}', (f'{name}.type', ))
        return
    known = names_read_from(part if cls is None else {**part, 'type': cls}, path)
    shown = f'{name} ({kind if isinstance(kind, str) else kind.__name__})' if kind else name
    for key, value in part.items():
        if known is not None and key not in known:
            if path[0] == 'model' and package_of(cls) != 'colonnade' and not any(
                    is_misspelt(key, other) for other in known):
                continue  # some classes read settings before they are built: building will tell
            meant = suggest_names(key, known - {'type', '_scope_'})
            says = f'{shown} has no setting {key}'
            yield Finding('unknown-setting', f'{says}; {meant}' if meant else says,
                          (f'{name}.{key}', ))
        elif isinstance(value, str) and (default := number_expected(cls, path, key)) is not None:
            yield Finding('setting-type', f'{name}.{key} is a number{default}, got {value!r}',
                          (f'{name}.{key}', ))


def registries_at(path: list[str]) -> tuple[registry.Registry, ...]:
    """The registries that the type of a dict at a path is looked up in; empty if not known."""
    if path[0] == 'default_hooks':
        return REGISTRIES['default_hooks'] if len(path) == 2 else ()
    return REGISTRIES.get(next(part for part in reversed(path) if not part.isdecimal()), ())


def is_looked_up(kind: Any, path: list[str]) -> bool:
    """Whether a type that nothing registers is wrong: it may be of a library that waits."""
    scope, _, _ = str(kind).rpartition('.')
    waits = scope and scope not in loaded_scopes() and may_be_name(str(kind))
    return bool(registries_at(path)) and not waits


def number_expected(cls: Any, path: list[str], key: str) -> str | None:
    """Return the default of a setting if it must be a number, for a message; else None."""
    if cls is None and path[-1].endswith('_dataloader'):
        cls = DataLoader
    parameter = parameter_of(cls, key)
    if parameter is None:
        return None
    default, annotation = parameter.default, str(parameter.annotation)
    annotated = parameter.annotation is not parameter.empty
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if annotated:
        is_number = bool(re.search(r'\b(int|float)\b', annotation)) and not re.search(
            r'\b(str|dict|Dict|Any|Sequence|Callable|Literal)\b', annotation)
    shown = '' if default in (None, parameter.empty) else f', {default}'
    return shown if is_number else None
