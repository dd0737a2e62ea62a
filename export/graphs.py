"""From modules to files that need no Python of ours: ONNX graphs and ``torch.export`` archives.

Shapes: ``B`` images, ``H, W`` their height and width.
"""
from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from colonnade.common.console_logging import log_errors_only
from colonnade.common.errors import UserCodeError, UserError

#: onnxruntime >= 1.23 runs it, and it is the first with GELU as one operator
OPSET = 20
MOST_BATCH, MOST_PIXELS = 2**16 - 1, 2**15  # of images that a graph takes

EXAMPLE = 256  # about the side of images that graphs are traced with

Size = tuple[int, int, int]  # images, height and width


class ExportError(UserError):
    """A model cannot be exported, or what was exported gives other results."""


class TraceError(ExportError, UserCodeError):
    """torch cannot trace or convert a model."""


@dataclass(frozen=True)
class ImageSizeLimits:
    """Which heights and widths a graph takes.

    Attributes:
        multiple: Of which they must be multiples.
        least: The smallest.
    """
    multiple: int
    least: int

    def dims(self) -> dict[int, Any]:
        """Batch, height and width of images ``(B, 3, H, W)`` as dynamic dimensions."""
        sides = [self._side(name) for name in ('height', 'width')]
        return {0: Dim('batch', min=1, max=MOST_BATCH), 2: sides[0], 3: sides[1]}

    def _side(self, name: str) -> Any:
        if self.multiple == 1:
            return Dim(name, min=self.least, max=MOST_PIXELS)
        least, most = -(-self.least // self.multiple), MOST_PIXELS // self.multiple
        return self.multiple * Dim(f'{name}_{self.multiple}', min=least, max=most)

    def fitting(self, length: int) -> int:
        """The next side that is at least ``length``."""
        return -(-max(length, self.least) // self.multiple) * self.multiple

    def sizes(self) -> tuple[Size, ...]:
        """Batch, height and width to verify: three sizes, each alone and in a batch."""
        large, middle = self.fitting(EXAMPLE + 41), self.fitting(EXAMPLE - 45)
        small = self.fitting(self.least)
        pairs = ((middle, large), (large, small), (small, small))
        return tuple((batch, *pair) for batch in (2, 1) for pair in pairs)


def images_of(size: Size) -> tuple[Tensor, ...]:
    """Random normalised images ``(B, 3, H, W)``, the same every time."""
    batch, height, width = size
    generator = torch.Generator().manual_seed(height * width + batch)
    return (torch.randn(batch, 3, height, width, generator=generator), )


@dataclass(frozen=True)
class Graph:
    """A part of a model that becomes one file.

    Attributes:
        name: Of its file, without suffix.
        module: In evaluation mode, from tensors to a tensor or a tuple of tensors.
        make_inputs: From batch, height and width of images to what the module takes of such.
        dynamic_shapes: For each input, which dimensions are dynamic, as torch.export takes them.
        input_names: Of its inputs.
        output_names: Of its outputs.
        sizes: Batch, height and width to verify; the first is the example to export.
    """
    name: str
    module: nn.Module
    make_inputs: Callable[[Size], tuple[Tensor, ...]]
    dynamic_shapes: tuple[Any, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    sizes: tuple[Size, ...]


def to_onnx(module: nn.Module, example_inputs: tuple[Tensor, ...], dynamic_shapes: tuple[Any, ...],
            path: Path, input_names: Sequence[str], output_names: Sequence[str]) -> None:
    """Write a module as an ONNX graph; weights of more than 2 GB go to a file beside it.

    Args:
        module: In evaluation mode.
        example_inputs: What it takes, two or more of whatever is dynamic.
        dynamic_shapes: As torch.export takes them, for each input.
        path: Ends in ``.onnx``.
        input_names: For each input.
        output_names: For each output.

    Raises:
        ExportError: If it cannot be exported; says which operator or module.
    """
    with reported(path.stem), torch.no_grad():
        program = torch.onnx.export(
            traced(module, example_inputs, dynamic_shapes),
            input_names=list(input_names),
            output_names=list(output_names),
            opset_version=OPSET,
            dynamo=True,
            verbose=False)
        program.save(path)


def to_archive(module: nn.Module, example_inputs: tuple[Tensor, ...],
               dynamic_shapes: tuple[Any, ...], path: Path) -> None:
    """Write a module as an archive of ``torch.export``; arguments as for :func:`to_onnx`.

    Raises:
        ExportError: If it cannot be exported; says which operator or module.
    """
    with reported(path.stem), torch.no_grad():
        torch.export.save(traced(module, example_inputs, dynamic_shapes), path)


def traced(module: nn.Module, example_inputs: tuple[Tensor, ...],
           dynamic_shapes: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """What torch.export makes of a module, without its conditions on sizes.

    Many of these cannot be proven before a size is known, such as that a level has more than one
    row. What they might hide is found by :mod:`.verification`, on several sizes and batches.
    """
    program = torch.export.export(
        module,
        example_inputs,
        dynamic_shapes=dynamic_shapes,
        prefer_deferred_runtime_asserts_over_guards=True)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.find_nodes(
                    op='call_function', target=torch.ops.aten._assert_scalar.default):
                part.graph.erase_node(node)
            part.graph.eliminate_dead_code()
            part.recompile()
    return program


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Context manager that turns what torch raises while it exports into an ExportError.

    torch's remarks are dropped.
    """
    with ExitStack() as stack:
        for logger in ('torch.onnx', 'torch.export', 'onnxscript'):
            stack.enter_context(log_errors_only(logging.getLogger(logger)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter('ignore')
        printed = io.StringIO()
        stack.enter_context(redirect_stdout(printed))
        stack.enter_context(redirect_stderr(printed))
        try:
            yield
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            raise TraceError(f'{name} cannot be exported: {error}') from error
