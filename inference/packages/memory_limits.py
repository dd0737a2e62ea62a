"""Untrusted models are built on the meta device first, so that a small file fills no memory."""
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

from .safety_checks import TRUST

SMALL = 2**16  # elements of tensors that keep their values: some constructors look at them
SPARE_BYTES = 2**26  # of tensors that are computed and not stored, such as masks and positions
BYTES_PER_STORED_BYTE = 4  # a model in float32 whose weights are stored in 8 bits
MODULES_PER_TENSOR, SPARE_MODULES = 20, 1000


class ShapesAlone(TorchDispatchMode):
    """A mode in which tensors of more than :data:`SMALL` elements are on the meta device.

    Unlike ``torch.device('meta')`` it serves constructors that read small tensors, as for the rates
    of stochastic depth.

    Args:
        max_bytes: Of the result of one operator.
        source: Name of the file whose config is built, for errors.
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
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        if func is torch.ops.aten._local_scalar_dense.default:  # Tensor.item()
            return func(*args, **kwargs)
        on_meta = tree_map_only(Tensor, lambda each: each.to('meta'), (args, kwargs))
        shape_kwargs = dict(on_meta[1])
        if any(each.name == 'device' for each in func._schema.arguments):
            shape_kwargs['device'] = torch.device('meta')
        shapes = func(*on_meta[0], **shape_kwargs)
        results = [each for each in tree_iter(shapes) if isinstance(each, Tensor)]
        for result in results:
            check_bytes(result.nbytes, self.max_bytes, self.source)
        if any(each.is_meta for each in tensors) or any(each.numel() > SMALL for each in results):
            return shapes
        return func(*args, **kwargs)


def check_bytes(count: int, most: int, source: str) -> None:
    """Raise a PackageError if a model needs more memory than its weights account for."""
    if count > most:
        raise PackageError(f'{source}: the model needs more than {most / 2**20:.0f} MiB, which its '
                           f'weights do not account for. {TRUST}')


@contextmanager
def limited_parts(max_modules: int, max_bytes: int, source: str) -> Iterator[None]:
    """Context manager that ends a model's constructor in this thread if it builds too much.

    Args:
        max_modules: The largest number of layers.
        max_bytes: The largest size of all parameters.
        source: Name of the file whose config is built, for errors.

    Raises:
        PackageError: If there are more.
    """
    thread, modules, count = get_ident(), 0, 0

    def on_module(*_: Any) -> None:
        nonlocal modules
        modules += get_ident() == thread
        if modules > max_modules:
            raise PackageError(f'{source}: the model has more than {max_modules} layers, which its '
                               f'weights do not account for. {TRUST}')

    def on_parameter(_: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal count
        if get_ident() == thread and parameter is not None:
            count += parameter.nbytes
            check_bytes(count, max_bytes, source)

    handles = [
        registration.register_module_module_registration_hook(on_module),
        registration.register_module_parameter_registration_hook(on_parameter),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_memory(model: dict[str, Any], num_tensors: int, stored_bytes: int, source: str) -> Shapes:
    """Check that a model needs no more memory than its weights account for.

    Args:
        model: ``model`` of a config whose types :mod:`.allowed` lists.
        num_tensors: Number of stored tensors.
        stored_bytes: Their size in the file.
        source: Name of the file whose config is built, for errors.

    Returns:
        Shapes of the model's state dict.

    Raises:
        PackageError: If it needs more.
    """
    max_bytes = BYTES_PER_STORED_BYTE * stored_bytes + SPARE_BYTES
    max_modules = MODULES_PER_TENSOR * num_tensors + SPARE_MODULES
    with limited_parts(max_modules, max_bytes, source), ShapesAlone(max_bytes, source):
        module = MODELS.build(deepcopy(model))
    every = (*module.parameters(), *module.buffers())
    check_bytes(sum(each.nbytes for each in every), max_bytes, source)
    return {key: value.shape for key, value in module.state_dict().items()}


def check_stored_shapes(model: dict[str, Any], weights: str | Path, source: str) -> None:
    """Check that a safetensors file has the tensors of a model, by its header alone.

    Args:
        model: ``model`` of a config whose types :mod:`.allowed` lists.
        weights: The safetensors file.
        source: Name of the file whose config is built, for errors.

    Raises:
        PackageError: If it has others, or the model needs memory beside them.
    """
    with safe_open(weights, framework='pt') as file:
        shapes = {key: torch.Size(file.get_slice(key).get_shape()) for key in file.keys()}
    required = check_memory(model, len(shapes), Path(weights).stat().st_size, source)
    stored = {key: torch.empty(shape, device='meta') for key, shape in shapes.items()}
    if problems := find_mismatches(stored, required):
        raise PackageError(f'{weights} does not fit the model of {source}:\n{format_mismatches(problems)}')


def check_stored(model: dict[str, Any], checkpoint: Mapping[str, Any], source: str) -> None:
    """Check that a model needs no more memory than the weights of its checkpoint account for.

    Args:
        model: ``model`` of the config that the checkpoint holds.
        checkpoint: As it was read.
        source: Name of its file.

    Raises:
        PackageError: If it needs more, or if a tensor claims memory that the file does not hold.
    """
    state = get_state_dict(checkpoint, source)
    for key, value in state.items():
        if value.layout != torch.strided or value.device.type != 'cpu':
            kind = str(value.layout).removeprefix('torch.')
            raise PackageError(f'{source}: {key} is a {kind} tensor on {value.device}, expected a '
                               'strided one in memory')
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage()
        for each in state.values()
    }
    stored_bytes = sum(each.nbytes() for each in storages.values())
    check_memory(model, len(state), stored_bytes, source)
