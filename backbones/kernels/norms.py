"""Batch normalisation layers: which they are, and when they count a batch."""
from __future__ import annotations

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model.utils import _BatchNormXd
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .fast_path import is_plain

#: with torch's forward; the last one is what mmengine makes of synchronised ones for one process
FOLDABLE = (nn.BatchNorm2d, nn.SyncBatchNorm, _BatchNormXd)


def replace_batch_norms(module: nn.Module, norm_cfg: dict) -> None:
    """Put layers of ``norm_cfg`` in the place of all ``BatchNorm2d`` below ``module``."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                parent.add_module(name, build_norm_layer(norm_cfg, child.num_features)[1])


def is_fixed(norm: nn.Module) -> bool:
    """Whether it is a batch norm that acts as a fixed affine map."""
    return (is_plain(norm, *FOLDABLE) and not norm.training and norm.running_mean is not None
            and norm.weight is not None and norm.bias is not None)


def affine_of(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """What ``norm`` multiplies by and adds in evaluation, each ``(C)``."""
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return scale, norm.bias - norm.running_mean * scale


def normalise(norm: nn.Module, x: Tensor) -> Tensor:
    """``norm(x)`` of a tensor that nobody else needs: without gradients it is overwritten."""
    in_place = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not (in_place and is_fixed(norm) and x.dtype == norm.weight.dtype):
        return norm(x)
    scale, shift = (value.view(-1, 1, 1) for value in affine_of(norm))
    return torch.addcmul(shift, x, scale, out=x)


def fold_batch_norm(conv: nn.Conv2d, norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that does what ``conv``, then ``norm`` in evaluation do."""
    scale, bias = affine_of(norm)
    if conv.bias is not None:
        bias = bias + conv.bias * scale
    return conv.weight * scale.view(-1, 1, 1, 1), bias


@torch.no_grad()
def fold_batch_norm_into(layers: nn.Sequential) -> None:
    """Fold the norm of a pair of convolution and norm into the convolution, for evaluation."""
    weight, bias = fold_batch_norm(*layers)
    layers[0].weight.copy_(weight)
    layers[0].bias = nn.Parameter(bias)
    layers[1] = nn.Identity()


def is_batch_norm(module: nn.Module) -> bool:
    """Whether it has statistics of batches, as torch's layers and mmcv's own have."""
    return hasattr(module, 'running_mean')


def can_rerun_locally(norm: nn.Module) -> bool:
    """Whether running it twice asks no other process, as synchronised batch norms do."""
    return isinstance(norm, (nn.BatchNorm2d, nn.GroupNorm)) or is_fixed(norm)


class RunningStatsKept:
    """A context in which norms in training mode normalise as always, but count no batch.

    Activation checkpointing runs a block again in each backward pass; without this, it would move
    the running statistics again. It moves copies. A norm without statistics would not do: autograd
    saves fewer tensors for it, and checkpointing compares their number. May be entered repeatedly.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        norms = [m for m in self.module.modules() if m.training and is_batch_norm(m)]
        self.before = [(norm, dict(norm.named_buffers(recurse=False))) for norm in norms]
        for norm, buffers in self.before:
            for name, value in buffers.items():
                setattr(norm, name, value.clone())

    def __exit__(self, *_: object) -> None:
        for norm, buffers in self.before:
            for name, value in buffers.items():
                setattr(norm, name, value)
