"""Memory limits of untrusted models, which are first built without allocating large tensors."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
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

from colonnade.settings.plain_config import PackageError
from colonnade.weights.state_dicts import Shapes, find_mismatches, format_mismatches, get_state_dict

from .safety_checks import TRUST_HINT

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
        if func is torch.ops.aten._local_scalar_dense.default:  # Tensor.item()
            return func(*args, **kwargs)
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        meta_args, meta_kwargs = tree_map_only(Tensor, lambda each: each.to('meta'), (args, kwargs))
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
    """Context manager that stops constructors in this thread if they build too much."""
    thread, num_modules, num_bytes = get_ident(), 0, 0

    def count_module(*_: Any) -> None:
        nonlocal num_modules
        num_modules += get_ident() == thread
        if num_modules > max_modules:
            raise PackageError(f'{source}: the model has more than {max_modules} layers, too many '
                               f'for the size of its weights. {TRUST_HINT}')

    def count_parameter(_: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal num_bytes
        if get_ident() == thread and parameter is not None:
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
            f'{weights} does not fit the model of {source}:\n{format_mismatches(problems)}')


def check_checkpoint(model: dict[str, Any], checkpoint: Mapping[str, Any], source: str) -> None:
    """Check that a model needs no more memory than the weights of a checkpoint justify."""
    state = get_state_dict(checkpoint, source)
    for key, value in state.items():
        if value.layout != torch.strided or value.device.type != 'cpu':
            layout = str(value.layout).removeprefix('torch.')
            raise PackageError(f'{source}: {key} is a {layout} tensor on {value.device}, expected '
                               'a strided tensor on cpu')
    # Tensors can share their storage.
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in state.values()
    }
    check_model_size(model, len(state), sum(storages.values()), source)
