"""Layers for evaluation on a CPU, whose weights are kept in oneDNN's own order.

oneDNN brings weights into the order of its kernels in every call; for few tokens that takes as long
as the product. Here it is done once, and GELU is applied while the product is in the cache.
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import private_torch
from .devices import should_use_cpu_forms
from .precision import product_dtype

TOKENS_HINT = 1024  # the order chosen for so many tokens is also fast for others
PIXELS_HINT = (1, 64, 64)  # batch, height and width, likewise
CHANNELS_OF_GELU = 16  # oneDNN's convolutions of fewer channels apply GELU slowly
PACKED_DTYPES = (torch.float32, torch.bfloat16)
#: what oneDNN does behind a product
PLAIN: tuple[str, list, str] = ('none', [], '')
GELU: tuple[str, list, str] = ('gelu', [], 'none')


def can_reorder(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if oneDNN can have weights on this device in its order, as ``dtype``."""
    fits = private_torch.HAS_PACKING and should_use_cpu_forms(weight) and dtype in PACKED_DTYPES
    # Without fast bfloat16, oneDNN raises.
    return fits and (dtype != torch.bfloat16 or private_torch.multiplies_by_onednn(dtype))


class Packed(nn.Module):
    """A layer with packed weights, for evaluation; it has no parameters.

    Weights follow :meth:`torch.nn.Module.to`, and are packed where oneDNN can have them. Gradients,
    other devices or precisions, and compilers cannot use packed ones: these are unpacked there and
    multiplied as always.

    Args:
        weight: As torch's layer has it.
        bias: ``(C_out)`` or None.
        dtype: Precision of products and results, float32 or bfloat16.
        keep: Whether the weights are often read, and kept in their order too.
    """
    bias: Tensor | None
    kept: Tensor | None  # weights in their order
    packed: Tensor | None  # weights in oneDNN's; if they are kept, from the first call on

    def __init__(self,
                 weight: Tensor,
                 bias: Tensor | None,
                 dtype: torch.dtype,
                 *,
                 keep: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        bias = None if bias is None else bias.detach().to(dtype)
        self.keep = keep
        # no buffers: devices, state dicts and copies do not know oneDNN's order
        self.__dict__.update(kept=weight.detach().to(dtype), packed=None, bias=bias)
        if not keep:
            self._pack(keep=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Packed:
        weight, bias = fn(self.weight), None if self.bias is None else fn(self.bias)
        self.dtype = weight.dtype
        self.__dict__.update(kept=weight, packed=None, bias=bias)
        if not self.keep and can_reorder(weight, self.dtype):
            self._pack(keep=False)
        return super()._apply(fn, recurse)

    @property
    def weight(self) -> Tensor:
        """As torch's layer has it; unpacked for this call if it is not kept."""
        if self.kept is None:
            assert self.packed is not None
            return self.packed.to_dense()
        return self.kept

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        number = self.weight.numel() * self.dtype.itemsize
        return number * ((self.kept is not None) + (self.packed is not None))

    def _pack(self, *, keep: bool) -> None:
        packed = self._reordered(self.kept)
        self.__dict__.update(packed=packed, kept=self.kept if keep else None)

    @abstractmethod
    def _reordered(self, weight: Tensor) -> Tensor:
        """Weights in oneDNN's order."""

    def _suits(self, x: Tensor) -> bool:
        """Whether packed weights can be used; they are made then."""
        suits = (
            should_use_cpu_forms(x) and product_dtype(x) == self.dtype and x.numel() > 0
            and not (torch.is_grad_enabled() and x.requires_grad)
            and not torch.compiler.is_compiling() and not torch.compiler.is_exporting())
        if suits and self.packed is None:
            suits = can_reorder(self.weight, self.dtype)
            if suits:
                self._pack(keep=self.keep)
        return suits

    def _forward_unpacked(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, weight and bias of torch's layer."""
        dtype = product_dtype(x)
        bias = None if self.bias is None else self.bias.to(x.device, dtype)
        return x.to(dtype), self.weight.to(x.device, dtype), bias

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, 'kept': self.weight, 'packed': None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self.keep and can_reorder(self.weight, self.dtype):
            self._pack(keep=False)


class PackedLinear(Packed):
    """``nn.Linear`` with packed weights, see :class:`Packed`."""

    def _reordered(self, weight: Tensor) -> Tensor:
        return private_torch.pack_linear(weight.contiguous(), TOKENS_HINT)

    def forward(self, x: Tensor, *, gelu: bool = False) -> Tensor:
        """``(B, N, C_in)`` to ``(B, N, C_out)``, with GELU behind if wanted."""
        if not self._suits(x):
            out = F.linear(*self._forward_unpacked(x))
            return F.gelu(out) if gelu else out
        return private_torch.run_linear(
            x.to(self.dtype), self.packed, self.bias, *(GELU if gelu else PLAIN))

    def forward_add(self, other: Tensor, x: Tensor) -> Tensor:
        """``other + layer(x)``; ``other`` is ``(B, N, C_out)``."""
        if other.dtype != self.dtype or not self._suits(x):
            return self(x).to(other.dtype).add_(other)
        return private_torch.run_linear.binary(
            x.to(self.dtype), other, self.packed, self.bias, 'add')


class PackedDepthwise(Packed):
    """A depthwise convolution that keeps the grid, with packed weights, see :class:`Packed`."""

    def _reordered(self, weight: Tensor) -> Tensor:
        batch, *size = PIXELS_HINT
        padding, *others = self._arguments(weight)
        return private_torch.pack_convolution(weight.contiguous(), padding, *others,
                                              [batch, len(weight), *size])

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` in channels-last order to the same shape."""
        if not self._suits(x):
            image, weight, bias = self._forward_unpacked(x)
            padding = weight.shape[-1] // 2
            return F.conv2d(image, weight, bias, padding=padding, groups=len(weight))
        return private_torch.run_convolution(
            x.to(self.dtype), self.packed, self.bias, *self._arguments(self.packed), *PLAIN)

    def forward_add(self, other: Tensor, x: Tensor) -> Tensor:
        """``other + layer(x)``, of which ``other`` is overwritten where that saves a copy."""
        if other.dtype != self.dtype or not self._suits(x):
            return self(x).to(other.dtype).add_(other)
        return private_torch.run_convolution_in_place.binary(other, x.to(self.dtype),
                                                             self.packed, self.bias,
                                                             *self._arguments(self.packed), 'add',
                                                             1.0, None, [], None)

    @staticmethod
    def _arguments(weight: Tensor) -> tuple[list[int], list[int], list[int], int]:
        """Padding, stride, dilation and groups."""
        return [weight.shape[-1] // 2] * 2, [1, 1], [1, 1], len(weight)


class PackedHalving(Packed):
    """A 3 x 3 convolution of stride 2 with packed weights, see :class:`Packed`."""

    def _reordered(self, weight: Tensor) -> Tensor:
        batch, *size = PIXELS_HINT
        shape = [batch, weight.shape[1], *size]
        return private_torch.pack_convolution(
            weight.contiguous(memory_format=torch.channels_last), [1, 1], [2, 2], [1, 1], 1, shape)

    def forward(self,
                x: Tensor,
                padding: tuple[int, int] = (1, 1),
                *,
                gelu: bool = False) -> Tensor:
        """``(B, C_in, H, W)`` to ``(B, C_out, h, w)``, with GELU behind if wanted.

        Args:
            x: In channels-last order.
            padding: Rows and columns of zeros on either side.
            gelu: Whether GELU follows.
        """
        if not self._suits(x):
            out = F.conv2d(*self._forward_unpacked(x), stride=2, padding=padding)
            return F.gelu(out) if gelu else out
        within = gelu and x.shape[1] >= CHANNELS_OF_GELU
        out = private_torch.run_convolution(
            x.to(self.dtype), self.packed, self.bias, list(padding), [2, 2], [1, 1], 1,
            *(GELU if within else PLAIN))
        return torch.ops.aten.gelu_(out) if gelu and not within else out
