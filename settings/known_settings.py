"""Settings that are read from a config: top-level keys and the arguments of its classes."""
from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Set
from difflib import get_close_matches
from functools import cache
from typing import Any

from mmengine.hooks import CheckpointHook
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from .registries import find_class, get_bases, is_custom_class

#: top-level keys: arguments of mmengine's runners, and what they and Colonnade read besides
TOP = {
    *inspect.signature(Runner.__init__).parameters, 'default_scope', 'custom_imports', 'sync_bn',
    'model_wrapper_cfg', 'runner_type', 'strategy', 'compile', 'find_unused_parameters',
    'activation_checkpointing', 'efficient_conv_bn_eval', 'tta_model', 'tta_pipeline', 'log_level',
    'detect_anomalous_params', 'sharded_checkpoints', 'accepted_findings'
} - {'self', 'cfg'}
#: dicts whose keys are chosen by the user
FREE = ('custom_keys', 'metainfo', 'init_cfg', 'cfg', 'backend_args')
#: keys that builders remove from a dict before they pass it to the class
REMOVED_BY_BUILDERS = {
    'default_hooks': {'priority'},
    'custom_hooks': {'priority'},
    'param_scheduler': {'convert_to_iter_based'},
}
#: arguments that the constructor of an optimizer wrapper reads
WRAPPER = {'optimizer', 'constructor', 'paramwise_cfg'}


def get_known_settings(value: Any, path: list[str]) -> Set[str] | None:
    """Return the settings that are read from a dict of a config, or None if that is unknown.

    Args:
        value: The dict, or any other value at this path.
        path: Keys that lead to it; empty for the whole config.
    """
    if not path:
        return TOP
    if not isinstance(value, dict) or path[-1] == 'norm_cfg':  # build_norm_layer reads more
        return None
    if 'type' in value:
        names = get_argument_names(value['type'], is_wrapper=path == ['optim_wrapper'])
        more = {'type', '_scope_'} | REMOVED_BY_BUILDERS.get(path[0], set())
        return None if names is None else names | more
    if path[-1].endswith('_dataloader'):
        return {*inspect.signature(DataLoader).parameters, 'num_batch_per_epoch'}
    if path == ['train_cfg']:
        loops = (EpochBasedTrainLoop, IterBasedTrainLoop)
        return {'type', 'by_epoch'}.union(*(inspect.signature(loop).parameters for loop in loops))
    if path == ['optim_wrapper']:
        return (get_argument_names(OptimWrapper, is_wrapper=True) or set()) | {'type'}
    return None


def get_argument_names(kind: Any, *, is_wrapper: bool = False) -> Set[str] | None:
    """Return the arguments of a class, or None if it is unknown or accepts any."""
    cls = find_class(kind)
    is_class = inspect.isclass(cls)
    arguments = get_arguments(cls) if is_class else None
    if arguments is None:
        return None
    return arguments.keys() | WRAPPER if is_wrapper else arguments.keys()


@cache
def get_arguments(cls: Any) -> dict[str, Any] | None:
    """Return the defaults of the arguments of a class and of the bases that it passes them to.

    The default of a required argument is ``Parameter.empty``. A class that accepts any arguments
    gives None.
    """
    arguments: dict[str, Any] = {}
    for base, signature in _iter_signatures(cls):
        parameters = signature.values()
        arguments = {
            p.name: p.default
            for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        } | arguments
        if base is CheckpointHook:  # passes unknown arguments to the runner, hours later
            arguments |= dict.fromkeys(inspect.signature(Runner.save_checkpoint).parameters)
        elif any(p.kind == p.VAR_KEYWORD for p in parameters):
            continue
        arguments.pop('self')
        return arguments
    return None


def _iter_signatures(cls: Any) -> Iterator[tuple[type, Mapping[str, inspect.Parameter]]]:
    """Yield each base with its own ``__init__``, and the parameters of that."""
    for base in get_bases(cls):
        if '__init__' in vars(base) and base is not object:
            yield base, inspect.signature(vars(base)['__init__']).parameters


def is_typo(name: str, other: str) -> bool:
    """Return True if a name is most likely a typo of another one: a part of it, or similar.

    Names that differ in a number (``stage3``) or a prefix (``unsup_weight``) are not typos.
    """
    if min(len(name), len(other)) >= 3 and (name.startswith(other) or other.startswith(name)):
        return '_' not in name[len(other):] + other[len(name):]
    numbered = name.rstrip('0123456789') == other.rstrip('0123456789')
    prefixed = name.endswith(other) or other.endswith(name)
    return not numbered and not prefixed and bool(get_close_matches(name, [other], cutoff=0.88))


def find_parameter(cls: Any, key: str) -> inspect.Parameter | None:
    """Return an argument of a class or of the base that it is passed to, or None if unknown.

    A custom class may pass its base another value than the default of the base.
    """
    for base, parameters in _iter_signatures(cls):
        if key in parameters or is_custom_class(base):
            return parameters.get(key)
    return None


def get_setting(part: dict[str, Any], key: str) -> Any:
    """Return a setting of a dict with a type, or its default, or None if that is unknown."""
    if key in part:
        return part[key]
    parameter = find_parameter(find_class(part.get('type')), key)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default
