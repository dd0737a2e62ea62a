"""Triton's kernels where there is no GPU: run by its interpreter, or compiled and not run.

The interpreter shows what kernels compute. It accepts code that the compiler refuses, and knows no
limits of memory. Its bfloat16 is corrected here: it multiplies the bits as integers, and cuts off
where GPUs round to the nearest.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.experimental.gluon  # noqa: F401  (copies Triton's functions when it is imported)
from triton import language
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction, mangle_type


def functions(holder: ModuleType) -> Iterator[tuple[str, JITFunction]]:
    return ((name, f) for name, f in list(vars(holder).items()) if isinstance(f, JITFunction))


def product(builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, total: TensorHandle,
            *options: Any) -> TensorHandle:
    """The interpreter's product of matrices, after bfloat16 is widened."""
    a, b = (
        cast(builder, x, language.float32) if x.dtype.scalar == language.bfloat16 else x
        for x in (a, b))
    return create_dot(builder, a, b, total, *options)


def rounded(builder: InterpreterBuilder, x: TensorHandle, dtype: language.dtype) -> TensorHandle:
    """The interpreter's cast, with bfloat16 rounded to the nearest."""
    if (x.dtype.scalar, dtype.scalar) != (language.float32, language.bfloat16):
        return cast(builder, x, dtype)
    bits = torch.from_numpy(np.ascontiguousarray(x.data)).bfloat16().view(torch.uint16)
    return TensorHandle(bits.numpy(), language.bfloat16)


create_dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl


@contextmanager
def interpreting(*kernels: ModuleType) -> Iterator[None]:
    """A context in which modules' kernels are run by Triton's interpreter, on CPU tensors.

    ``TRITON_INTERPRET`` would have to be set before anything imports Triton. The interpreter does
    not restore all that it replaces in Triton's language, so it is restored here.
    """
    core = language.core
    holders = (language, core, language.standard, language.math, core.tensor, core.dtype,
               core.condition, core.tensor_descriptor_base, InterpreterBuilder, *kernels)
    before = [dict(vars(holder)) for holder in holders]
    for holder in (language, language.standard, *kernels):
        for name, function in functions(holder):
            setattr(holder, name, InterpretedFunction(function.fn))
    InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl = product, rounded
    try:
        yield
    finally:
        for holder, values in zip(holders, before, strict=True):
            for name, value in dict(vars(holder)).items():
                if name not in values:
                    delattr(holder, name)
                elif value is not values[name]:
                    setattr(holder, name, values[name])
        InterpretedFunction.rewritten_fn.clear()  # they know names that are gone


class Compiling:
    """A kernel that is compiled when it is launched, and not run.

    Args:
        function: The kernel.
        capability: Of the GPU it is compiled for, such as 90.
        compiled: Gets the name of the kernel with what was compiled.
    """

    def __init__(self, function: JITFunction, capability: int, compiled: list) -> None:
        self.function, self.capability, self.compiled = function, capability, compiled

    def __getitem__(self, grid: tuple[int, ...]) -> Compiling:
        return self

    def __call__(self, *args: Any, num_warps: int = 4, num_stages: int = 3, **named: Any) -> None:
        names = self.function.arg_names
        given: Mapping[str, Any] = dict(zip(names, args, strict=False)) | named
        fixed = {p.name for p in self.function.params if p.is_constexpr}
        source = ASTSource(
            self.function,
            signature={n: 'constexpr' if n in fixed else mangle_type(given[n])
                       for n in names},
            constexprs={(names.index(name), ): given[name]
                        for name in fixed},
            attrs={
                (names.index(name), ): [['tt.divisibility', 16]]
                for name, value in given.items()
                if isinstance(value, torch.Tensor) and value.data_ptr() % 16 == 0
            })
        target = GPUTarget('cuda', self.capability, 32)
        options = dict(num_warps=num_warps, num_stages=num_stages)
        self.compiled.append(
            (self.function.__name__, triton.compile(source, target=target, options=options)))


def compile_only(kernels: ModuleType, capability: int, monkeypatch: pytest.MonkeyPatch) -> list:
    """Have a module's kernels compiled for a GPU when they are launched; see :class:`Compiling`."""
    compiled = []
    for name, function in functions(kernels):
        if name.endswith('_kernel'):
            monkeypatch.setattr(kernels, name, Compiling(function, capability, compiled))
    return compiled
