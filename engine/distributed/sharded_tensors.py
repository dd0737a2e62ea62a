"""Tensors of which each process keeps a part (DTensors)."""
from __future__ import annotations

import copy
from functools import partial
from itertools import chain
from typing import Any

import torch
from mmengine.dist import is_main_process
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserError


def require_unused(has_unused: bool) -> None:
    """Raise a ValueError if processes may leave different parameters unused, and torch cannot."""
    if has_unused and not hasattr(FSDPModule, 'set_reduce_scatter_unused_params'):
        raise UserError('--fsdp with find_unused_parameters=True needs torch 2.15, this is '
                        f'{torch.__version__}')


def with_a_dimension(model: nn.Module) -> list[str]:
    """Let parameters without any dimension have one, along which torch shares them out.

    Such are mmcv's ``Scale`` in FCOS and ATSS.

    Args:
        model: Changed in place.

    Returns:
        Their names.
    """
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    for name in scalars:
        parent, _, own = name.rpartition('.')
        old = model.get_parameter(name)
        single = nn.Parameter(old.detach().reshape(1), old.requires_grad)
        setattr(model.get_submodule(parent), own, single)
    return scalars


def shard_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Let each process keep a part of every parameter: a unit per block, and one for the rest.

    A unit is gathered while it computes. The model is changed in place, and keeps its names.

    Args:
        model: A detector or segmenter, on any device; it is moved to the mesh's.
        mesh: Of all processes, one-dimensional.
    """
    blank = without_values(model)
    for backbone in [module for module in model.modules() if isinstance(module, ColumnarBackbone)]:
        for block in backbone.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # copy.deepcopy asks an object for this; torch's units refuse
    model.__deepcopy__ = partial(copy_of_shards, model, blank)


def tensors_of(model: nn.Module) -> chain[Tensor]:
    """The parameters and buffers of a model, in an order that its copies have too."""
    return chain(model.parameters(), model.buffers())


def without_values(model: nn.Module) -> nn.Module:
    """A copy of a model on torch's meta device."""
    memo: dict[int, Any] = {}
    for tensor in tensors_of(model):
        empty = torch.empty_like(tensor, device='meta')
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return copy.deepcopy(model, memo)


def copy_of_shards(model: nn.Module, blank: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A copy of a sharded model that keeps the same shards and does not compute.

    So hooks average weights: each process those that it keeps.

    Args:
        model: With shards.
        blank: The same before it was sharded, without values.
        memo: Of ``copy.deepcopy``.
    """
    for empty, tensor in zip(tensors_of(blank), tensors_of(model), strict=True):
        value = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(empty)] = nn.Parameter(value, tensor.requires_grad) if is_parameter else value
    return copy.deepcopy(blank, memo)


def units_of(model: nn.Module) -> list[FSDPModule]:
    """The parts of a model that are gathered one by one, the model itself first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def keep_whole(model: nn.Module) -> None:
    """Gather a sharded model and keep it so: processes may call it differently often."""
    for unit in units_of(model):
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()


def keep_shards(model: nn.Module) -> None:
    """Undo :func:`keep_whole`; then each unit is gathered when it computes."""
    for unit in units_of(model):
        unit.reshard()
        unit.set_reshard_after_forward(unit is not model, recurse=False)


def like(value: Tensor, shard: Tensor) -> Tensor:
    """A whole tensor, of which each process keeps as much as of ``shard``, a parameter's."""
    if not isinstance(shard, DTensor) or isinstance(value, DTensor) or value.shape != shard.shape:
        return value
    return distribute_tensor(value, shard.device_mesh, shard.placements, src_data_rank=None)


def whole(value: Any, everywhere: bool = False) -> Any:
    """A sharded tensor gathered on the CPU; anything else as it is.

    All processes must call it. Those beside the first get None unless ``everywhere`` is set.
    """
    if not isinstance(value, DTensor):
        return value
    gathered = value.to(value.device_mesh.device_type).full_tensor()
    return gathered.cpu() if everywhere or is_main_process() else None
