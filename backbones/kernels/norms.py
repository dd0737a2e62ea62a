"""Batch norms: detection, replacement, folding, and their running statistics."""
from __future__ import annotations

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model.utils import _BatchNormXd
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .fast_path import is_exact_type

#: norms with torch's forward; the last one is mmengine's synchronized norm on one process
FOLDABLE = (nn.BatchNorm2d, nn.SyncBatchNorm, _BatchNormXd)
MIN_IN_PLACE = 2**16  # elements; for fewer, computing scale and shift takes longer


def is_batch_norm(module: nn.Module) -> bool:
    """Return True if a module has running statistics, as torch's and mmcv's batch norms have."""
    return hasattr(module, 'running_mean')


def replace_batch_norms(module: nn.Module, norm_cfg: dict) -> None:
    """Replace every ``BatchNorm2d`` below a module by a norm of ``norm_cfg``."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                parent.add_module(name, build_norm_layer(norm_cfg, child.num_features)[1])


def is_fixed(norm: nn.Module) -> bool:
    """Return True if a module is a batch norm that acts as a fixed affine map."""
    return (is_exact_type(norm, *FOLDABLE) and not norm.training and norm.running_mean is not None
            and norm.weight is not None and norm.bias is not None)


def get_scale_and_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the factors and summands ``(C)`` of a batch norm in evaluation mode."""
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return scale, norm.bias - norm.running_mean * scale


class FixedNorm(nn.Module):
    """Batch norm in evaluation mode, as a scale and a shift ``(C, 1, 1)``.

    Args:
        norm: The batch norm.
    """
    scale: Tensor
    shift: Tensor

    @torch.no_grad()
    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        for name, value in zip(('scale', 'shift'), get_scale_and_shift(norm), strict=True):
            self.register_buffer(name, value.view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``(B, C, H, W)``."""
        return torch.addcmul(self.shift, x, self.scale)


def normalize(norm: nn.Module, x: Tensor) -> Tensor:
    """Return ``norm(x)``; without gradients a large ``x`` is overwritten."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or x.numel() < MIN_IN_PLACE:
        return norm(x)
    if is_exact_type(norm, FixedNorm):
        scale, shift = norm.scale, norm.shift
    elif is_fixed(norm):
        scale, shift = (value.view(-1, 1, 1) for value in get_scale_and_shift(norm))
    else:
        return norm(x)
    return torch.addcmul(shift, x, scale, out=x) if x.dtype == scale.dtype else norm(x)


def fold_batch_norm(conv: nn.Conv2d, norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a convolution equal to ``conv`` followed by ``norm``."""
    scale, bias = get_scale_and_shift(norm)
    if conv.bias is not None:
        bias = bias + conv.bias * scale
    return conv.weight * scale.view(-1, 1, 1, 1), bias


def can_rerun_locally(norm: nn.Module) -> bool:
    """Return True if a norm can run again without other processes, unlike synchronized ones."""
    return isinstance(norm, (nn.BatchNorm2d, nn.GroupNorm)) or is_fixed(norm)


class RunningStatsKept:
    """Context in which norms in training mode do not update their running statistics.

    Activation checkpointing runs a block again in the backward pass, which would update them again.
    Copies are updated instead. Norms without statistics would not do, since autograd saves fewer
    tensors for them, and checkpointing compares their number. Can be entered repeatedly.
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
