"""Operators of mmcv, implemented with torchvision and torch: ``mmcv._ext`` of build_mmcv.py.

mmcv looks up operators by name and passes the tensors to write to. These are the operators that
detectors and segmenters use, for CPUs and GPUs, with gradients and in any precision. Others raise a
NotImplementedError when they are called.

Formulas: mmcv/ops/csrc/common/cuda in mmcv 2.3.6.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torchvision

from .attention import ms_deform_attn_backward, ms_deform_attn_forward
from .boxes import nms, nms_match, softnms
from .common import MISSING
from .deform_conv import (deform_conv_backward_input, deform_conv_backward_parameters,
                          deform_conv_forward, modulated_deform_conv_backward,
                          modulated_deform_conv_forward)
from .focal_loss import (sigmoid_focal_loss_backward, sigmoid_focal_loss_forward,
                         softmax_focal_loss_backward, softmax_focal_loss_forward)
from .regions import roi_align_backward, roi_align_forward, roi_pool_backward, roi_pool_forward

__all__ = [
    'deform_conv_backward_input', 'deform_conv_backward_parameters', 'deform_conv_forward',
    'get_compiler_version', 'get_compiling_cuda_version', 'modulated_deform_conv_backward',
    'modulated_deform_conv_forward', 'ms_deform_attn_backward', 'ms_deform_attn_forward', 'nms',
    'nms_match', 'roi_align_backward', 'roi_align_forward', 'roi_pool_backward', 'roi_pool_forward',
    'sigmoid_focal_loss_backward', 'sigmoid_focal_loss_forward', 'softmax_focal_loss_backward',
    'softmax_focal_loss_forward', 'softnms'
]


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a stub, since mmcv checks at import that every operator exists."""
    if name.startswith('_'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(MISSING.format(name))

    return missing


def get_compiler_version() -> str:
    return f'none (operators of torchvision {torchvision.__version__})'


def get_compiling_cuda_version() -> str:
    return f'none (torch has {torch.version.cuda or "no CUDA"})'
