"""Graphs of modules, written as ONNX, OpenVINO or torch.export files.

Shapes: ``B`` images, ``H, W`` their height and width.
"""
from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from colonnade.common.console_logging import log_errors_only
from colonnade.common.errors import UserCodeError, UserError, convert_errors
from colonnade.runtime.sessions import OPENVINO

#: supported by onnxruntime >= 1.23; the first opset with GELU as one operator
OPSET = 20
MAX_BATCH, MAX_SIDE = 2**16 - 1, 2**15  # limits of graph inputs
EXAMPLE_SIDE = 256  # approximate side in pixels of images for tracing

DYNAMIC = Dim.DYNAMIC
MAP = {2: DYNAMIC, 3: DYNAMIC}  # dynamic height and width

Size = tuple[int, int, int]  # batch size, height and width


class ExportError(UserError):
    """Model that cannot be exported, or whose export gives other results."""


class TraceError(ExportError, UserCodeError):
    """Model that torch cannot trace or convert."""


@dataclass(frozen=True)
class ImageSizeLimits:
    """Heights and widths that a graph accepts.

    Attributes:
        multiple: Divisor of height and width.
        minimum: Smallest height and width in pixels.
        channels: Channels of images.
    """
    multiple: int
    minimum: int
    channels: int = 3

    def get_dims(self) -> dict[int, Any]:
        """Return the dynamic dimensions of images ``(B, 3, H, W)``."""
        dims: dict[int, Any] = {0: Dim('batch', min=1, max=MAX_BATCH)}
        for axis, name in ((2, 'height'), (3, 'width')):
            if self.multiple == 1:
                dims[axis] = Dim(name, min=self.minimum, max=MAX_SIDE)
            else:
                smallest, largest = -(-self.minimum // self.multiple), MAX_SIDE // self.multiple
                dim = Dim(f'{name}_{self.multiple}', min=smallest, max=largest)
                dims[axis] = self.multiple * dim
        return dims

    def round_up(self, length: int) -> int:
        """Return the smallest valid side that is at least ``length``."""
        return -(-max(length, self.minimum) // self.multiple) * self.multiple

    def list_sizes(self, batch_sizes: tuple[int, ...] = (2, 1)) -> tuple[Size, ...]:
        """Return sizes to verify: three image sizes, for each batch size."""
        large, middle = self.round_up(EXAMPLE_SIDE + 41), self.round_up(EXAMPLE_SIDE - 45)
        small = self.round_up(self.minimum)
        pairs = ((middle, large), (large, small), (small, small))
        return tuple((batch, *pair) for batch in batch_sizes for pair in pairs)

    def make_images(self, size: Size) -> tuple[Tensor, ...]:
        """Return random normalized images ``(B, c, H, W)``, the same every time."""
        batch, height, width = size
        generator = torch.Generator().manual_seed(height * width + batch)
        return (torch.randn(batch, self.channels, height, width, generator=generator), )


@dataclass(frozen=True)
class Graph:
    """Module that becomes one file.

    Attributes:
        name: File name without suffix.
        module: Module in evaluation mode that returns a tensor or a tuple of tensors.
        make_inputs: Function that returns inputs for a batch size, height and width of images.
        dynamic_shapes: Dynamic dimensions of each input, see :func:`torch.export.export`.
        input_names: Names of the inputs.
        output_names: Names of the outputs.
        sizes: Sizes to verify; the first one is the example for tracing.
    """
    name: str
    module: nn.Module
    make_inputs: Callable[[Size], tuple[Tensor, ...]]
    dynamic_shapes: tuple[Any, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    sizes: tuple[Size, ...]


def write_graph(graph: Graph, path: Path) -> None:
    """Write a graph in float32 as an ``.onnx``, ``.xml`` (OpenVINO) or ``.pt2`` file.

    Raises:
        ExportError: If it cannot be exported; the operator or module is named.
    """
    examples = graph.make_inputs(graph.sizes[0])
    if path.suffix == '.pt2':
        to_pt2(graph.module, examples, graph.dynamic_shapes, path)
        return
    onnx = path.with_suffix('.onnx')
    to_onnx(graph.module, examples, graph.dynamic_shapes, onnx, graph.input_names,
            graph.output_names)
    if path.suffix == OPENVINO:
        to_openvino(onnx, path)


def to_onnx(module: nn.Module, example_inputs: tuple[Tensor, ...], dynamic_shapes: tuple[Any, ...],
            path: Path, input_names: Sequence[str], output_names: Sequence[str]) -> None:
    """Write a module as an ONNX graph; weights above 2 GB go to a second file.

    Args:
        module: Module in evaluation mode.
        example_inputs: Inputs whose dynamic dimensions are at least 2.
        dynamic_shapes: Dynamic dimensions of each input, see :func:`torch.export.export`.
        path: ``.onnx`` file to write.
        input_names: Names of the inputs.
        output_names: Names of the outputs.

    Raises:
        ExportError: If it cannot be exported; the operator or module is named.
    """
    with convert_export_errors(path.stem), torch.no_grad():
        program = torch.onnx.export(
            trace(module, example_inputs, dynamic_shapes),
            input_names=list(input_names),
            output_names=list(output_names),
            opset_version=OPSET,
            dynamo=True,
            verbose=False)
        program.save(path)


def to_openvino(path: Path, target: Path) -> None:
    """Convert an ONNX graph to OpenVINO: an ``.xml`` file, and a ``.bin`` file with its weights.

    Args:
        path: ONNX graph, which is removed.
        target: ``.xml`` file to write.

    Raises:
        ExportError: If OpenVINO cannot convert it; the operator is named.
    """
    import openvino  # optional
    with convert_errors(  # OpenVINO's errors have no common class
            lambda error: ExportError(f'{path.stem} cannot be exported to OpenVINO: {error}')):
        model = openvino.convert_model(str(path))
    openvino.save_model(model, str(target), compress_to_fp16=False)
    for file in (path, path.with_name(f'{path.name}.data')):
        file.unlink(missing_ok=True)


def to_pt2(module: nn.Module, example_inputs: tuple[Tensor, ...], dynamic_shapes: tuple[Any, ...],
           path: Path) -> None:
    """Write a module as a ``torch.export`` archive; see :func:`to_onnx` for the arguments."""
    with convert_export_errors(path.stem), torch.no_grad():
        torch.export.save(trace(module, example_inputs, dynamic_shapes), path)


def trace(module: nn.Module, example_inputs: tuple[Tensor, ...],
          dynamic_shapes: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """Return the exported program of a module, without its assertions on sizes.

    Many of these cannot be proven before a size is known, such as that a level has more than one
    row. :mod:`.verification` finds real errors on several sizes and batch sizes.
    """
    program = torch.export.export(
        module,
        example_inputs,
        dynamic_shapes=dynamic_shapes,
        prefer_deferred_runtime_asserts_over_guards=True)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if str(node.target) == 'aten._assert_scalar.default':
                    part.graph.erase_node(node)
            part.graph.eliminate_dead_code()
            part.recompile()
    return program


@contextmanager
def convert_export_errors(name: str) -> Iterator[None]:
    """Context manager that turns errors of torch into an ExportError, and hides its warnings."""
    with ExitStack() as stack:
        for logger in ('torch.onnx', 'torch.export', 'onnxscript'):
            stack.enter_context(log_errors_only(logging.getLogger(logger)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter('ignore')
        output = io.StringIO()
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(redirect_stderr(output))
        try:
            yield
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            raise TraceError(f'{name} cannot be exported: {error}') from error


def build_image_graph(name: str,
                      module: nn.Module,
                      limits: ImageSizeLimits,
                      outputs: Sequence[str],
                      takes_size: bool = False) -> Graph:
    """Return a graph that takes a normalized image ``(1, 3, H, W)``.

    Args:
        name: Name of the graph.
        module: Module that takes the image.
        limits: Valid image sizes.
        outputs: Names of the outputs.
        takes_size: Whether it also takes height and width without padding, ``(2,)``.
    """

    def make_inputs(size: Size) -> tuple[Tensor, ...]:
        images = limits.make_images(size)
        return (*images, torch.tensor([size[1] - 3, size[2] - 5])) if takes_size else images

    dims = limits.get_dims()
    shapes = [{2: dims[2], 3: dims[3]}, *[None] * takes_size]
    inputs = ['image', *['size'] * takes_size]
    return Graph(name, module.eval(), make_inputs, tuple(shapes), tuple(inputs), tuple(outputs),
                 limits.list_sizes(batch_sizes=(1, )))


def build_maps_graph(name: str, module: nn.Module, limits: ImageSizeLimits,
                     make_inputs: Callable[[Size], tuple[Tensor, ...]], shapes: Sequence[Any],
                     inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Return a graph that takes outputs of another; its module takes any number of tensors."""
    return Graph(name, module.eval(), make_inputs, (tuple(shapes), ), tuple(inputs), tuple(outputs),
                 limits.list_sizes(batch_sizes=(1, )))


def require_type(value: Any, *classes: type) -> None:
    """Raise an ExportError unless the exact type is supported; subclasses may differ."""
    if type(value) not in classes:
        names = ', '.join(cls.__name__ for cls in classes)
        raise ExportError(
            f'{type(value).__name__} cannot be exported: the runtime supports only {names}')


def get_nms_threshold(nms: Mapping[str, Any] | None, section: str) -> float:
    """Return the IoU threshold of an NMS in a config section.

    Raises:
        ExportError: If the runtime does not support the NMS.
    """
    supported = {'type', 'iou_threshold', 'split_thr'}  # split_thr changes only the order of work
    if not nms or nms.get('type', 'nms') != 'nms' or set(nms) - supported:
        raise ExportError(f'{section}.nms cannot be exported: the runtime supports only '
                          f"dict(type='nms', iou_threshold=...), got {nms}")
    return float(nms['iou_threshold'])
