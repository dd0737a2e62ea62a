"""Models and tensors that are sharded over processes (DTensors)."""
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


def reshape_scalars(model: nn.Module) -> list[str]:
    """Give parameters without dimensions one dimension, because torch cannot shard scalars.

    mmcv's ``Scale`` in FCOS and ATSS has such parameters.
    """
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    for name in scalars:
        parent, _, own = name.rpartition('.')
        old = model.get_parameter(name)
        single = nn.Parameter(old.detach().reshape(1), old.requires_grad)
        setattr(model.get_submodule(parent), own, single)
    return scalars


def shard_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a model in place, with a unit per backbone block, and one for the rest.

    A unit is gathered while it computes. Names of parameters stay.
    """
    memo: dict[int, Any] = {}
    for tensor in _iter_tensors(model):
        _replace_in_copy(memo, tensor, torch.empty_like(tensor, device='meta'), tensor)
    template = copy.deepcopy(model, memo)
    for backbone in [each for each in model.modules() if isinstance(each, ColumnarBackbone)]:
        for block in backbone.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # copy.deepcopy calls this attribute; torch's own raises an error.
    model.__deepcopy__ = partial(_copy_shards, model, template)


def _iter_tensors(model: nn.Module) -> chain[Tensor]:
    """Yield parameters and buffers, in the same order for copies."""
    return chain(model.parameters(), model.buffers())


def _replace_in_copy(memo: dict[int, Any], key: Tensor, value: Tensor, like: Tensor) -> None:
    """Make a deep copy with this memo use a value in place of a tensor."""
    is_parameter = isinstance(like, nn.Parameter)
    memo[id(key)] = nn.Parameter(value, like.requires_grad) if is_parameter else value


def _copy_shards(model: nn.Module, template: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy of a sharded model with the same shards, which cannot compute."""
    for empty, tensor in zip(_iter_tensors(template), _iter_tensors(model), strict=True):
        _replace_in_copy(memo, empty, tensor.detach().clone(), tensor)
    return copy.deepcopy(template, memo)


def _get_units(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def gather_model(model: nn.Module) -> None:
    """Gather a sharded model for calls that differ in number between processes."""
    for unit in _get_units(model):
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()


def reshard_model(model: nn.Module) -> None:
    """Undo :func:`gather_model`; then each unit is gathered when it computes."""
    for unit in _get_units(model):
        unit.reshard()
        unit.set_reshard_after_forward(unit is not model, recurse=False)


def shard_like(value: Tensor, shard: Tensor) -> Tensor:
    """Return a full tensor, sharded like a parameter of the same shape."""
    if not isinstance(shard, DTensor) or isinstance(value, DTensor) or value.shape != shard.shape:
        return value
    return distribute_tensor(value, shard.device_mesh, shard.placements, src_data_rank=None)


def gather_tensor(value: Any, everywhere: bool = False) -> Any:
    """Return a sharded tensor gathered on the CPU, or anything else unchanged.

    All processes must call it. All but the first get None, unless ``everywhere`` is set.
    """
    if not isinstance(value, DTensor):
        return value
    gathered = value.to(value.device_mesh.device_type).full_tensor()
    return gathered.cpu() if everywhere or is_main_process() else None
