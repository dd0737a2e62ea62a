"""Layers for evaluation on a CPU with weights in oneDNN's own memory format.

oneDNN reorders weights for its kernels in every call, which for few tokens takes as long as the
matmul. These layers reorder them once, and with AVX-512 apply GELU while the result is in the
cache.
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import private_torch
from .devices import HAS_AVX512, get_matmul_dtype, should_use_cpu_forms

TOKENS_HINT = 1024  # tokens; the format chosen for them is fast for other numbers too
PIXELS_HINT = (1, 64, 64)  # batch, height and width, likewise
MIN_HALVING_PIXELS = 512  # of an image; from here on, one format fits all sizes with AVX-512
MIN_GELU_CHANNELS = 16  # below this, oneDNN's convolutions apply GELU slowly
GELU_IN_KERNEL = HAS_AVX512  # with AVX2, oneDNN takes three times as long for GELU as torch
PACKED_DTYPES = (torch.float32, torch.bfloat16)
#: post-operations of oneDNN's matmuls
PLAIN: tuple[str, list, str] = ('none', [], '')
GELU: tuple[str, list, str] = ('gelu', [], 'none')


def can_reorder(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if oneDNN can store weights of this device in its format, as ``dtype``."""
    fits = private_torch.HAS_PACKING and should_use_cpu_forms(weight) and dtype in PACKED_DTYPES
    # Without fast bfloat16, oneDNN raises.
    return fits and (dtype != torch.bfloat16 or private_torch.has_fast_matmuls(dtype))


class Packed(nn.Module):
    """Base class of layers with packed weights for evaluation; they have no parameters.

    Weights follow :meth:`torch.nn.Module.to`, and are packed where oneDNN supports it. For
    gradients, other devices or types, and compilers, they are unpacked and multiplied as usual.

    Args:
        weight: Weight of the torch layer.
        bias: Bias ``(C_out)`` or None.
        dtype: Type of matmuls and results, float32 or bfloat16.
        keep: Keep the original weights too, because they are often read.
    """
    bias: Tensor | None
    kept: Tensor | None  # weights in torch's format
    packed: Tensor | None  # weights in oneDNN's format; with keep, from the first call on

    def __init__(self,
                 weight: Tensor,
                 bias: Tensor | None,
                 dtype: torch.dtype,
                 *,
                 keep: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        self.keep = keep
        # They cannot be buffers: moves, state dicts and copies do not know oneDNN's format.
        bias = None if bias is None else bias.detach().to(dtype)
        self.__dict__.update(kept=weight.detach().to(dtype), packed=None, bias=bias)
        if not keep:
            self._pack()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Packed:
        weight, bias = fn(self.weight), None if self.bias is None else fn(self.bias)
        self.dtype = weight.dtype
        self.__dict__.update(kept=weight, packed=None, bias=bias)
        if not self.keep and can_reorder(weight, self.dtype):
            self._pack()
        return super()._apply(fn, recurse)

    @property
    def weight(self) -> Tensor:
        """Weight of the torch layer; unpacked for this call if it is not kept."""
        if self.kept is None:
            assert self.packed is not None
            return self.packed.to_dense()
        return self.kept

    @property
    def nbytes(self) -> int:
        """Size of the weights in bytes."""
        size = self.weight.numel() * self.dtype.itemsize
        return size * ((self.kept is not None) + (self.packed is not None))

    def _pack(self) -> None:
        packed = self._reorder(self.kept)
        self.__dict__.update(packed=packed, kept=self.kept if self.keep else None)

    @abstractmethod
    def _reorder(self, weight: Tensor) -> Tensor:
        """Return the weights in oneDNN's format."""

    def _can_use_packed(self, x: Tensor) -> bool:
        """Return True if packed weights can be used; pack them if they are not."""
        suits = (
            should_use_cpu_forms(x) and get_matmul_dtype(x) == self.dtype and x.numel() > 0
            and not (torch.is_grad_enabled() and x.requires_grad)
            and not torch.compiler.is_compiling())
        if suits and self.packed is None:
            suits = can_reorder(self.weight, self.dtype)
            if suits:
                self._pack()
        return suits

    def _forward_unpacked(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return input, weight and bias of the torch layer."""
        dtype = get_matmul_dtype(x)
        bias = None if self.bias is None else self.bias.to(x.device, dtype)
        return x.to(dtype), self.weight.to(x.device, dtype), bias

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, 'kept': self.weight, 'packed': None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self.keep and can_reorder(self.weight, self.dtype):
            self._pack()


class PackedLinear(Packed):
    """``nn.Linear`` with packed weights."""

    def _reorder(self, weight: Tensor) -> Tensor:
        return private_torch.pack_linear(weight.contiguous(), TOKENS_HINT)

    def forward(self, x: Tensor, *, gelu: bool = False) -> Tensor:
        """Map ``(B, N, C_in)`` to ``(B, N, C_out)``, followed by GELU if asked for."""
        if not self._can_use_packed(x):
            out = F.linear(*self._forward_unpacked(x))
            return F.gelu(out) if gelu else out
        in_kernel = gelu and GELU_IN_KERNEL
        out = private_torch.run_linear(
            x.to(self.dtype), self.packed, self.bias, *(GELU if in_kernel else PLAIN))
        return torch.ops.aten.gelu_(out) if gelu and not in_kernel else out

    def forward_add(self, other: Tensor, x: Tensor) -> Tensor:
        """Return ``other + layer(x)``; ``other`` is ``(B, N, C_out)``."""
        if other.dtype != self.dtype or not self._can_use_packed(x):
            return self(x).to(other.dtype).add_(other)
        return private_torch.run_linear.binary(
            x.to(self.dtype), other, self.packed, self.bias, 'add')


class PackedDepthwise(Packed):
    """Depthwise convolution that keeps the grid, with packed weights."""

    def _reorder(self, weight: Tensor) -> Tensor:
        batch, *size = PIXELS_HINT
        return private_torch.pack_convolution(weight.contiguous(), *self._get_arguments(weight),
                                              [batch, len(weight), *size])

    def forward(self, x: Tensor) -> Tensor:
        """Map a channels-last ``(B, C, H, W)`` to the same shape."""
        if not self._can_use_packed(x):
            image, weight, bias = self._forward_unpacked(x)
            padding = weight.shape[-1] // 2
            return F.conv2d(image, weight, bias, padding=padding, groups=len(weight))
        return private_torch.run_convolution(
            x.to(self.dtype), self.packed, self.bias, *self._get_arguments(self.packed), *PLAIN)

    def forward_add(self, other: Tensor, x: Tensor) -> Tensor:
        """Return ``other + layer(x)``; ``other`` is overwritten where that saves a copy."""
        if other.dtype != self.dtype or not self._can_use_packed(x):
            return self(x).to(other.dtype).add_(other)
        return private_torch.run_convolution_in_place.binary(other, x.to(self.dtype), self.packed,
                                                             self.bias,
                                                             *self._get_arguments(self.packed),
                                                             'add', 1.0, None, [], None)

    @staticmethod
    def _get_arguments(weight: Tensor) -> tuple[list[int], list[int], list[int], int]:
        """Return padding, stride, dilation and groups."""
        return [weight.shape[-1] // 2] * 2, [1, 1], [1, 1], len(weight)


class PackedHalving(Packed):
    """3 x 3 convolution of stride 2 with packed weights.

    The format that oneDNN wants depends on the sizes of batch and image, with AVX-512 only for
    small images. With another one, it takes 15 ms in each call to reorder weights of 192 x 384
    channels. So the weights are packed again, within 1 ms, when a size changes.
    """
    packed_for = PIXELS_HINT  # batch, height and width

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        weight = weight.detach().contiguous(memory_format=torch.channels_last)
        super().__init__(weight, bias, dtype, keep=True)

    def _can_use_packed(self, x: Tensor) -> bool:
        if torch.compiler.is_compiling() or x.numel() == 0:
            return False  # what is compiled has no condition on the size
        is_large = HAS_AVX512 and x.shape[2] * x.shape[3] >= MIN_HALVING_PIXELS
        size = PIXELS_HINT if is_large else (len(x), x.shape[2], x.shape[3])
        if size != self.packed_for:
            self.packed_for = size
            if self.packed is not None:
                self._pack()
        return super()._can_use_packed(x)

    def _reorder(self, weight: Tensor) -> Tensor:
        batch, *size = self.packed_for
        shape = [batch, weight.shape[1], *size]
        return private_torch.pack_convolution(
            weight.contiguous(memory_format=torch.channels_last), [1, 1], [2, 2], [1, 1], 1, shape)

    def forward(self,
                x: Tensor,
                padding: tuple[int, int] = (1, 1),
                *,
                gelu: bool = False) -> Tensor:
        """Map a channels-last ``(B, C_in, H, W)`` to ``(B, C_out, h, w)``, zero-padded."""
        if not self._can_use_packed(x):
            out = F.conv2d(*self._forward_unpacked(x), stride=2, padding=padding)
            return F.gelu(out) if gelu else out
        in_kernel = gelu and GELU_IN_KERNEL and x.shape[1] >= MIN_GELU_CHANNELS
        out = private_torch.run_convolution(
            x.to(self.dtype), self.packed, self.bias, list(padding), [2, 2], [1, 1], 1,
            *(GELU if in_kernel else PLAIN))
        return torch.ops.aten.gelu_(out) if gelu and not in_kernel else out
