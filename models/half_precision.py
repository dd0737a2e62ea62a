"""Mixed precision (``--amp``): which type pays on a device, and models that compute in it.

torch.autocast lets products and convolutions compute in a type of 16 bits. What heads answer is
float32 all the same, and so is what follows from it: priors, boxes, scores, logits, losses. A
number of bfloat16 has 8 binary digits, so beyond 128 none is left for fractions of a pixel.
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

from .fusion.precision import cast_weights

#: what ``--amp`` takes; False is off, True is the usual one of the device
Amp = bool | str
TYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}
#: limits of oneDNN's instruction sets that leave it no products in bfloat16
WITHOUT_BFLOAT16 = ('SSE41', 'AVX', 'AVX2', 'AVX2_VNNI', 'AVX2_VNNI_2', 'AVX512_CORE',
                    'AVX512_CORE_VNNI')  # yapf: disable
#: the environment's names for it; oneDNN takes the first that is set
LIMITS = ('ONEDNN_MAX_CPU_ISA', 'DNNL_MAX_CPU_ISA')


@runtime_checkable
class Head(Protocol):
    """A head of mmdet or mmseg."""

    def predict_by_feat(self, *args: Any, **kwargs: Any) -> Any:
        """Results from what its forward gives."""


@runtime_checkable
class PredictingHead(Head, Protocol):
    """One that gets maps, and not regions."""

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Results from maps."""


def half_type(amp: Amp, device: str) -> torch.dtype | None:
    """The type to compute in, None for float32 alone.

    Args:
        amp: A name, True for bfloat16 on a CPU and float16 elsewhere, or False.
        device: Its type, as in ``'cuda'``.

    Raises:
        ValueError: If there is no such type, or the device would gain nothing by it.
    """
    if amp is False:
        return None
    if amp is not True and amp not in TYPES:
        raise UserError(f'amp must be True, False, {" or ".join(map(repr, TYPES))}, got {amp!r}')
    if device == 'cpu':
        if amp == 'float16':
            raise UserError('--amp-dtype float16: a CPU computes in bfloat16: say --amp')
        if reason := lacks_bfloat16():
            raise UserError(f'--amp: {reason}; leave it out')
        return torch.bfloat16
    if amp == 'bfloat16' and device == 'cuda' and \
            not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError('--amp-dtype bfloat16: this GPU has no products in bfloat16: say --amp')
    return torch.float16 if amp is True else TYPES[amp]


def name_of_type(dtype: torch.dtype | None) -> str | None:
    """What ``--amp-dtype`` calls a type of :func:`half_type`."""
    return next((name for name, known in TYPES.items() if known == dtype), None)


def lacks_bfloat16() -> str:
    """Why this processor would gain nothing by bfloat16; empty if it would."""
    if (machine := platform.machine().lower()).startswith(('arm', 'aarch64')):
        return f'bfloat16 was not measured on processors of type {machine}'
    name = next(filter(os.environ.get, LIMITS), '')
    if (limit := os.environ.get(name, '')).upper() in WITHOUT_BFLOAT16:
        reason = f'{name}={limit} allows neither AMX nor AVX512-BF16'
    elif not torch.backends.mkldnn.is_available():
        reason = 'this torch has no oneDNN'
    elif {'amx_bf16', 'avx512_bf16'} & instruction_sets():
        return ''
    else:
        reason = 'this processor has neither AMX nor AVX512-BF16'
    return f'{reason}: bfloat16 would be slower than float32'


def instruction_sets() -> set[str]:
    """Those of the processor, by Linux's names; of earlier versions of torch these two alone."""
    if known := getattr(torch.cpu, 'get_capabilities', None):
        return {name for name, value in known().items() if value is True}
    asked = {'avx512_bf16': '_is_avx512_bf16_supported', 'amx_bf16': '_is_amx_tile_supported'}
    return {name for name, function in asked.items() if getattr(torch.cpu, function)()}


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Let a model that is evaluated compute in a half type; nothing else may call its layers then.

    Args:
        model: A detector or segmenter on its device, with its weights; changed in place.
        dtype: See :func:`half_type`.
    """
    for line in cast_weights(model, dtype):
        print_log(line, logger='current', level=logging.DEBUG)
    keep_answers_float32(model)
    model.forward = partial(call_under_autocast, model, model.forward, dtype)


def call_under_autocast(model: nn.Module, forward: Callable[..., Any], dtype: torch.dtype, *args:
                        Any, **kwargs: Any) -> Any:
    """What a model's own ``forward`` returns under autocast, wherever the model is by now."""
    with torch.autocast(next(model.parameters()).device.type, dtype):
        return forward(*args, **kwargs)


def keep_answers_float32(model: nn.Module) -> None:
    """Let the heads of mmdet and mmseg answer in float32 under autocast.

    mmdet makes priors in the type of the scores, and rounds the corners of regions to the type of
    the maps. So extractors of regions get maps in float32, unless they say ``exact_regions``.
    DETR's heads add boxes to what their branches answer, in place, and the transformer calls these
    for scores and boxes of its own.

    Args:
        model: Changed in place.
    """
    mmdet = sys.modules.get('mmdet.models.roi_heads.roi_extractors')  # importing it takes seconds
    extractors = mmdet.BaseRoIExtractor if mmdet else ()
    for module in list(model.modules()):
        if isinstance(module, Head):
            branches = (getattr(module, name, ()) for name in ('cls_branches', 'reg_branches'))
            for part in {module, *chain(*branches)}:
                part.forward = partial(answer_in_float32, part.forward)
            if isinstance(module, PredictingHead):
                predict = partial(answer_in_float32, module.predict)
                module.predict = predict  # type: ignore[method-assign]
        elif isinstance(module, extractors) and not getattr(module, 'exact_regions', False):
            module.forward = partial(call_with_float32, module.forward)


def answer_in_float32(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns, tensors of half types as float32."""
    return in_float32(function(*args, **kwargs))


def call_with_float32(function: Callable[..., Any], maps: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function returns for maps in float32."""
    return function(in_float32(maps), *args, **kwargs)


def in_float32(value: Any) -> Any:
    """A value with its tensors of half types, also within tuples, lists and dicts, as float32."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in TYPES.values() else value
    if isinstance(value, dict):
        return {key: in_float32(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(in_float32(item) for item in value)
    return value


@OPTIM_WRAPPERS.register_module()
class Bfloat16OptimWrapper(OptimWrapper):
    """mmengine's wrapper of optimizers, under autocast in bfloat16, on any device.

    bfloat16 has the range of float32, so losses need no scaling. mmengine's AmpOptimWrapper always
    scales them, and needs a GPU.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._is_prepared = False

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """The context of a forward pass in training."""
        if not self._is_prepared:
            keep_answers_float32(model)
            self._is_prepared = True
        with super().optim_context(model), torch.autocast(get_device(), torch.bfloat16):
            yield
