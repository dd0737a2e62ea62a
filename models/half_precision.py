"""Mixed precision (``--amp``): choice of the type for a device, and models that compute in it.

torch.autocast computes matmuls and convolutions in a type of 16 bits. The outputs of heads, and
what follows from them, are float32: priors, boxes, scores, logits, losses. bfloat16 has 8 binary
digits, so coordinates beyond 128 would have no fractions of a pixel.
"""
from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import Tensor, nn

from colonnade.common.errors import UserError

from .fusion.full_model import cast_weights

#: values of ``--amp``; False is off, True is the default type of the device
Amp = bool | str
TYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}
#: limits of oneDNN's instruction sets without matmuls in bfloat16
WITHOUT_BFLOAT16 = ('SSE41', 'AVX', 'AVX2', 'AVX2_VNNI', 'AVX2_VNNI_2', 'AVX512_CORE',
                    'AVX512_CORE_VNNI')  # yapf: disable
#: variables of the limit; oneDNN uses the first that is set
LIMITS = ('ONEDNN_MAX_CPU_ISA', 'DNNL_MAX_CPU_ISA')


@runtime_checkable
class Head(Protocol):
    """Head of mmdet or mmseg."""

    def predict_by_feat(self, *args: Any, **kwargs: Any) -> Any:
        """Convert outputs to results."""


@runtime_checkable
class PredictingHead(Head, Protocol):
    """Head whose input are feature maps, not RoIs."""

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict from feature maps."""


def get_half_type(amp: Amp, device: str) -> torch.dtype | None:
    """Return the type to compute in, None for float32.

    Args:
        amp: Name of a type, True for bfloat16 on a CPU and float16 elsewhere, or False.
        device: Type of the device, such as ``'cuda'``.

    Raises:
        ValueError: If the type does not exist, or is not faster on the device.
    """
    if amp is False:
        return None
    if amp is not True and amp not in TYPES:
        raise UserError(f'amp must be True, False, {" or ".join(map(repr, TYPES))}, got {amp!r}')
    if device == 'cpu':
        if amp == 'float16':
            raise UserError('--amp-dtype float16 is for GPUs: for bfloat16 on a CPU, pass --amp')
        if reason := explain_missing_bfloat16():
            raise UserError(f'--amp: {reason}; remove it')
        return torch.bfloat16
    if amp == 'bfloat16' and device == 'cuda' and \
            not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError('--amp-dtype bfloat16: this GPU does not support bfloat16: pass --amp')
    return torch.float16 if amp is True else TYPES[amp]


def get_type_name(dtype: torch.dtype | None) -> str | None:
    """Return the name of a type in ``--amp-dtype``."""
    return next((name for name, known in TYPES.items() if known == dtype), None)


def explain_missing_bfloat16() -> str:
    """Return why bfloat16 is not faster on this CPU, or an empty string if it is."""
    if (machine := platform.machine().lower()).startswith(('arm', 'aarch64')):
        return f'bfloat16 was not measured on {machine} CPUs'
    name = next(filter(os.environ.get, LIMITS), '')
    if (limit := os.environ.get(name, '')).upper() in WITHOUT_BFLOAT16:
        reason = f'{name}={limit} allows neither AMX nor AVX512-BF16'
    elif not torch.backends.mkldnn.is_available():
        reason = 'this torch has no oneDNN'
    elif {'amx_bf16', 'avx512_bf16'} & get_instruction_sets():
        return ''
    else:
        reason = 'this CPU has neither AMX nor AVX512-BF16'
    return f'{reason}: bfloat16 would be slower than float32'


def get_instruction_sets() -> set[str]:
    """Return the CPU's instruction sets by Linux's names; only two with earlier torch versions."""
    if known := getattr(torch.cpu, 'get_capabilities', None):
        return {name for name, value in known().items() if value is True}
    queries = {'avx512_bf16': '_is_avx512_bf16_supported', 'amx_bf16': '_is_amx_tile_supported'}
    return {name for name, function in queries.items() if getattr(torch.cpu, function)()}


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Make a model compute in a type of 16 bits, for evaluation by calls of the model only."""
    for line in cast_weights(model, dtype):
        print_log(line, logger='current', level=logging.DEBUG)
    keep_outputs_float32(model)
    model.forward = partial(_call_under_autocast, model, model.forward, dtype)


def _call_under_autocast(model: nn.Module, forward: Callable[..., Any], dtype: torch.dtype, *args:
                         Any, **kwargs: Any) -> Any:
    """Call a model's original ``forward`` under autocast on its present device."""
    with torch.autocast(next(model.parameters()).device.type, dtype):
        return forward(*args, **kwargs)


def keep_outputs_float32(model: nn.Module) -> None:
    """Make the heads of mmdet and mmseg output float32 under autocast, in place.

    mmdet creates priors in the type of the scores, and casts corners of RoIs to that of the maps.
    So RoI extractors get maps in float32, unless they have ``exact_regions``. DETR's heads add
    boxes to the outputs of their branches in place, and its transformer calls the branches too.
    """
    mmdet = sys.modules.get('mmdet.models.roi_heads.roi_extractors')  # slow to import
    extractors = mmdet.BaseRoIExtractor if mmdet else ()
    for module in list(model.modules()):
        if isinstance(module, Head):
            branches = (getattr(module, name, ()) for name in ('cls_branches', 'reg_branches'))
            for part in {module, *chain(*branches)}:
                part.forward = partial(_return_float32, part.forward)
            if isinstance(module, PredictingHead):
                predict = partial(_return_float32, module.predict)
                module.predict = predict  # type: ignore[method-assign]
        elif isinstance(module, extractors) and not getattr(module, 'exact_regions', False):
            module.forward = partial(_pass_float32, module.forward)


def _return_float32(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return cast_to_float32(function(*args, **kwargs))


def _pass_float32(function: Callable[..., Any], maps: Any, *args: Any, **kwargs: Any) -> Any:
    return function(cast_to_float32(maps), *args, **kwargs)


def cast_to_float32(value: Any) -> Any:
    """Cast tensors of 16 bits to float32, also within tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in TYPES.values() else value
    if isinstance(value, dict):
        return {key: cast_to_float32(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(cast_to_float32(item) for item in value)
    return value


@OPTIM_WRAPPERS.register_module()
class Bfloat16OptimWrapper(OptimWrapper):
    """Optimizer wrapper with autocast in bfloat16 on any device.

    bfloat16 has the range of float32, so losses need no scaling. mmengine's AmpOptimWrapper always
    scales them, and needs a GPU.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._is_prepared = False

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Context manager for the forward pass of training."""
        if not self._is_prepared:
            keep_outputs_float32(model)
            self._is_prepared = True
        with super().optim_context(model), torch.autocast(get_device(), torch.bfloat16):
            yield
