"""Checks of untrusted configs: only types and strings of :mod:`.allowed`, and limited memory.

That a config consists of plain values is not enough. mmengine imports and calls any ``type`` that
is not registered. Parts of mmdet and mmcv evaluate strings, read files that strings name, or
download weights from a hub.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from mmengine.registry import MODELS
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.modules import module as registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from colonnade.backbones import BACKBONES
from colonnade.backbones.plain_vit.architectures import list_known_models
from colonnade.settings.reading import LIBRARIES
from colonnade.settings.registries import REGISTRIES
from colonnade.weights.config_text import OUR_IMPORTS, is_module, is_module_name
from colonnade.weights.state_dicts import Shapes, find_mismatches, format_mismatches, get_state_dict

from .allowed import (INITIALIZERS, MAX_NUMBER, MAX_NUMBERS, MAX_SIDE, MODEL_TYPES, OTHER_TYPES,
                      STEPS, VALUES, WORD_STARTS, WORDS)
from .package_errors import PackageError

TRUST_HINT = 'If you trust its author, load it with trust=True, or --trust'
#: types that mmdet and mmcv look up in mmcv.ops, without a registry
OPERATORS = ('RoIAlign', 'RoIPool', 'SimpleRoIAlign', 'nms', 'soft_nms')
#: keys that datasets read as paths or text, and that no registry receives
DATASET_KEYS = ('metainfo', 'ann_file', 'data_root', 'data_prefix')
#: key under which :func:`iter_values` yields settings that a step of a pipeline cannot have
UNKNOWN_SETTING = 'unknown setting'


def check_imports(values: Mapping[str, Any], source: str) -> None:
    """Raise a PackageError if a config imports modules other than Colonnade's, mmdet's, mmseg's."""
    imports = values.get('custom_imports') or {}
    names = imports.get('imports') if isinstance(imports, Mapping) else None
    names = [names] if isinstance(names, str) else names or []
    for name in names:
        if not isinstance(name, str) or name.split('.')[0] not in OUR_IMPORTS:
            raise PackageError(f'{source}: custom_imports contains {name!r}, but only modules of '
                               f'{", ".join(OUR_IMPORTS)} may be imported. {TRUST_HINT}')


def check_names(values: Mapping[str, Any], source: str) -> None:
    """Raise a PackageError for a value that :mod:`.allowed` does not list."""
    scope = values['default_scope']
    for place, key, value, limit in iter_values(values):
        if problem := find_problem(place, key, value, scope, limit):
            text = repr(value)
            text = text if len(text) <= 80 else f'{text[:80]}...'
            raise PackageError(f'{source}: {place} is {text}, {problem}. {TRUST_HINT}')


def iter_values(value: Any,
                place: str = '',
                key: str = '',
                limit: float = MAX_NUMBER) -> Iterator[tuple[str, str, Any, float]]:
    """Yield place, last key, value and the largest allowed number of all keys and values.

    The last key of a key itself is empty.
    """
    if isinstance(value, Mapping):
        step = str(value.get('type')).rpartition('.')[2]
        for inner, item in value.items():
            inner_place = f'{place}.{inner}' if place else str(inner)
            is_text = inner in DATASET_KEYS and not is_built(inner_place)
            if inner_place in ('custom_imports', 'default_scope') or is_text:
                continue
            is_step = 'pipeline' in place and step in STEPS
            if is_step and inner not in (*STEPS[step], 'type'):
                yield inner_place, UNKNOWN_SETTING, item, limit
            if isinstance(inner, str):
                yield inner_place, '', inner, limit
            inner_limit = MAX_NUMBERS.get(inner, MAX_SIDE if 'pipeline' in inner_place else limit)
            yield from iter_values(item, inner_place, str(inner), inner_limit)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from iter_values(item, f'{place}[{index}]', key, limit)
    else:
        yield place, key, value, limit


def is_built(place: str) -> bool:
    """Return True for parts of the model and steps of pipelines."""
    return place.startswith('model.') or 'pipeline' in place


def find_problem(place: str, key: str, value: Any, scope: str, limit: float) -> str:
    """Return why a value of :func:`iter_values` is not allowed, or an empty string.

    ``scope`` is the library of types without a library.
    """
    if key == UNKNOWN_SETTING:
        return 'a setting that untrusted configs cannot use'
    if key in VALUES and not any(value is each for each in VALUES[key]):
        return f'but only {" or ".join(map(repr, VALUES[key]))} is allowed'
    if not isinstance(value, str):
        is_limited = type(value) is int or (type(value) is float and limit != MAX_NUMBER)
        is_large = is_limited and is_built(place) and abs(value) > limit
        return f'but at most {limit} is allowed' if is_large else ''
    if '.init_cfg' in place:  # Colonnade removes it before building, but other programs read it.
        is_known = value in INITIALIZERS if key == 'type' else value.isidentifier()
        return '' if is_known else 'which is not an initializer without a file'
    if key == 'type':
        types = STEPS if 'pipeline' in place else MODEL_TYPES if is_built(place) else OTHER_TYPES
        if value.rpartition('.')[2] not in types:
            return 'which is not on the list of types that untrusted configs can use'
        if not is_registered(value, scope):
            return 'which is not registered in mmengine, mmdet, mmseg or Colonnade'
    elif key == '_scope_':
        return '' if value in (*LIBRARIES, 'mmengine') else 'which is not a known library'
    elif is_module_name(value):
        return 'which is the name of a module'
    elif is_built(place) and not is_allowed_string(key, value):
        return 'which is not on the list of strings that untrusted configs can use'
    return ''


def is_allowed_string(key: str, text: str) -> bool:
    """Return True if a string can be part of a model or pipeline."""
    if not key:
        return text.isidentifier()
    if key in ('arch', 'model'):
        name, _, tag = text.partition('.')
        if any(text in backbone.variants.rows
               for backbone in BACKBONES.values()) or (name in list_known_models() and
                                                       (not tag or tag.isidentifier())):
            return True
    if key == 'suffixes':
        return '/' not in text and '\\' not in text
    return text in WORDS or (text.isidentifier() and text.startswith(WORD_STARTS))


def is_registered(kind: str, scope: str) -> bool:
    """Return True if a type is registered, so that mmengine does not import a module to find it."""
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


MAX_SMALL_SIZE = 2**16  # elements of tensors that keep their values, which constructors may read
SPARE_BYTES = 2**26  # for tensors that are computed and not stored, such as masks and positions
BYTES_PER_STORED_BYTE = 4  # for a float32 model with weights of 8 bits
MODULES_PER_TENSOR, SPARE_MODULES = 20, 1000


class MetaTensorMode(TorchDispatchMode):
    """A mode in which tensors of more than :data:`MAX_SMALL_SIZE` elements are meta tensors.

    Unlike ``torch.device('meta')``, it supports constructors that read small tensors, such as rates
    of stochastic depth.
    """

    def __init__(self, max_bytes: int, source: str) -> None:
        super().__init__()
        self.max_bytes, self.source = max_bytes, source

    def __torch_dispatch__(self,
                           func: Any,
                           types: Any,
                           args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if str(func) == 'aten._local_scalar_dense.default':  # Tensor.item()
            return func(*args, **kwargs)
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        meta_args, meta_kwargs = tree_map_only(Tensor, lambda each: each.to('meta'), (args, kwargs))
        # torch 2.15 has no public name for the arguments of an operator.
        if any(each.name == 'device' for each in func._schema.arguments):
            meta_kwargs = {**meta_kwargs, 'device': torch.device('meta')}
        meta_output = func(*meta_args, **meta_kwargs)
        outputs = [each for each in tree_iter(meta_output) if isinstance(each, Tensor)]
        for output in outputs:
            check_num_bytes(output.nbytes, self.max_bytes, self.source)
        is_large = any(each.numel() > MAX_SMALL_SIZE for each in outputs)
        if is_large or any(each.is_meta for each in tensors):
            return meta_output
        return func(*args, **kwargs)


def check_num_bytes(num_bytes: int, max_bytes: int, source: str) -> None:
    """Raise a PackageError if a model needs more memory than its weights justify."""
    if num_bytes > max_bytes:
        raise PackageError(f'{source}: the model needs more than {max_bytes / 2**20:.0f} MiB, too '
                           f'much for the size of its weights. {TRUST_HINT}')


@contextmanager
def limit_model_size(max_modules: int, max_bytes: int, source: str) -> Iterator[None]:
    """Context manager that stops constructors in this thread if they build too much.

    What they build on the meta device, as PlainViT does to look up sizes, takes no memory.
    """
    thread, num_modules, num_bytes = get_ident(), 0, 0

    def count_module(*_: Any) -> None:
        nonlocal num_modules
        num_modules += get_ident() == thread
        if num_modules > max_modules:
            raise PackageError(f'{source}: the model has more than {max_modules} layers, too many '
                               f'for the size of its weights. {TRUST_HINT}')

    def count_parameter(_: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal num_bytes
        is_counted = get_ident() == thread and torch.get_default_device().type != 'meta'
        if is_counted and parameter is not None:
            num_bytes += parameter.nbytes
            check_num_bytes(num_bytes, max_bytes, source)

    with registration.register_module_module_registration_hook(count_module), \
            registration.register_module_parameter_registration_hook(count_parameter):
        yield


def check_model_size(model: dict[str, Any], num_tensors: int, num_bytes: int,
                     source: str) -> Shapes:
    """Check that a model needs no more memory than its weights justify; return its shapes."""
    max_bytes = BYTES_PER_STORED_BYTE * num_bytes + SPARE_BYTES
    max_modules = MODULES_PER_TENSOR * num_tensors + SPARE_MODULES
    with limit_model_size(max_modules, max_bytes, source), MetaTensorMode(max_bytes, source):
        module = MODELS.build(deepcopy(model))
    tensors = (*module.parameters(), *module.buffers())
    check_num_bytes(sum(each.nbytes for each in tensors), max_bytes, source)
    return {key: value.shape for key, value in module.state_dict().items()}


def check_safetensors(model: dict[str, Any], weights: str | Path, source: str) -> None:
    """Check by its header that a safetensors file has the tensors of a model."""
    with safe_open(weights, framework='pt') as file:
        shapes = {key: torch.Size(file.get_slice(key).get_shape()) for key in file.keys()}
    required = check_model_size(model, len(shapes), Path(weights).stat().st_size, source)
    stored = {key: torch.empty(shape, device='meta') for key, shape in shapes.items()}
    if problems := find_mismatches(stored, required):
        raise PackageError(
            f'{weights} does not match the model in its config:\n{format_mismatches(problems)}')


def check_checkpoint(model: dict[str, Any], checkpoint: Mapping[str, Any], source: str) -> None:
    """Check that a model needs no more memory than the weights of a checkpoint justify."""
    state = get_state_dict(checkpoint, source)
    for key, value in state.items():
        if value.layout != torch.strided or value.device.type != 'cpu':
            layout = str(value.layout).removeprefix('torch.')
            raise PackageError(f'{source}: {key} is a {layout} tensor on {value.device}: expected '
                               'a strided tensor on cpu')
    # Tensors can share their storage.
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in state.values()
    }
    check_model_size(model, len(state), sum(storages.values()), source)
