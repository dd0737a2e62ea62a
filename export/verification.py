"""Comparison of a graph with its PyTorch module: deviation and speed at several sizes.

Rounding errors differ much between models. Therefore graph and module are both compared with the
module in float64, and the graph may deviate by a multiple of the deviation of the module.
"""
from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.common.name_lists import format_count
from colonnade.runtime.metadata import ModelError
from colonnade.runtime.sessions import OPENVINO, Session

from .graphs import ExportError, Graph, Size

ROUNDS = 5  # timed runs
#: minimum rounding error of torch, as a fraction of the largest value of an output
MIN_ERROR = 1e-6
#: the same if a module does not support float64, so that the error of torch is unknown
ASSUMED_ERROR = 1e-5
REFUSED = 10  # tolerances from which a deviation is an error instead of a warning

Arrays = list[np.ndarray]
Run = Callable[[tuple[Tensor, ...]], Arrays]


@dataclass(frozen=True)
class Comparison:
    """Comparison of a graph with its module.

    Attributes:
        name: Name of the graph.
        num_sizes: Number of compared sizes.
        absolute: Largest absolute deviation from torch.
        relative: Largest deviation from torch, relative to the largest value of the output.
        factor: Largest deviation of an output from float64, relative to that of torch.
        output: Name of that output.
        num_bytes: Size of the files of the graph.
        seconds: Median time of module and graph for ``size``.
        size: Batch size, height and width.
        warning: Message to show to the user, or an empty string.
    """
    name: str
    num_sizes: int
    absolute: float
    relative: float
    factor: float
    output: str
    num_bytes: int
    seconds: tuple[float, float]
    size: Size
    warning: str = ''

    def __str__(self) -> str:
        module, graph = (1000 * seconds for seconds in self.seconds)
        return (f'{self.name}: {self.num_bytes / 1e6:.1f} MB; maximum deviation '
                f'{self.absolute:.1e}, {self.relative:.1e} of the largest value, for '
                f'{self.num_sizes} sizes; {format_size(self.size)} takes {graph:.1f} ms, '
                f'torch {module:.1f} ms')


def compare(graph: Graph, path: Path) -> Comparison:
    """Run a graph and its module on the same inputs of all its sizes.

    Raises:
        ExportError: If the file does not run, or its outputs have another shape or type.
    """
    run_module, run_file = build_module_runner(graph.module), build_file_runner(graph, path)
    run_exact = build_module_runner(copy.deepcopy(graph.module).double())
    absolute = relative = 0.
    factor, output = 0., graph.output_names[0]
    for size in graph.sizes:
        inputs = graph.make_inputs(size)
        expected = run_module(inputs)
        try:
            actual = run_file(inputs)
        except (ModelError, RuntimeError) as error:  # of the runtime, or of torch.export
            raise ExportError(
                f'{graph.name} does not run on {format_size(size)}: {error}') from error
        for deviation, largest in iter_deviations(graph, size, actual, expected):
            absolute = max(absolute, deviation)
            relative = max(relative, deviation / largest if largest else deviation)
        exact = run_in_float64(run_exact, inputs, expected)
        min_error = ASSUMED_ERROR if exact is None else MIN_ERROR
        for name, *arrays in zip(
                graph.output_names, actual, expected, exact or expected, strict=True):
            error_factor = compute_error_factor(*arrays, min_error=min_error)
            factor, output = max((factor, output), (error_factor, name))
    size = max(graph.sizes, key=lambda size: size[1] * size[2] / size[0])
    seconds = measure_time(graph.make_inputs(size), run_module, run_file)
    num_bytes = sum(file.stat().st_size for file in list_files(path))
    return Comparison(graph.name, len(graph.sizes), absolute, relative, factor, output, num_bytes,
                      seconds, size)


def verify(graph: Graph, path: Path, tolerance: float) -> Comparison:
    """Call :func:`compare`, and warn if the deviation exceeds a tolerance.

    Args:
        graph: Exported graph.
        path: File of the graph.
        tolerance: Maximum deviation from float64, relative to that of torch.

    Raises:
        ExportError: See :func:`compare`; also if the deviation far exceeds the tolerance.
    """
    result = compare(graph, path)
    if result.factor <= tolerance:
        return result
    deviation = (
        f'{result.name}: the output {result.output} deviates from float64 by {result.factor:.3g} '
        f'times the rounding error of torch, but --tolerance is {tolerance:g}')
    if result.factor > REFUSED * tolerance:
        raise ExportError(
            f'{deviation}: more than {REFUSED} times the tolerance is not a rounding error, so '
            f'nothing was written. To write it anyway, pass --tolerance {math.ceil(result.factor)} '
            'and compare its predictions on your own images with those of colonnade predict')
    return replace(
        result,
        warning=f'{deviation}. Compare predictions on your own images with those of '
        'colonnade predict')


def run_in_float64(run: Run, inputs: tuple[Tensor, ...], expected: Arrays) -> Arrays | None:
    """Return the outputs of a module in float64, or None if it does not support that."""
    doubled = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    try:
        outputs = run(doubled)
    except (RuntimeError, TypeError):  # an operator does not support float64
        return None
    is_same = [each.shape for each in outputs] == [each.shape for each in expected]
    return outputs if is_same else None


def compute_error_factor(actual: np.ndarray,
                         expected: np.ndarray,
                         exact: np.ndarray,
                         *,
                         min_error: float = MIN_ERROR) -> float:
    """Return the deviation of an output from float64, relative to that of torch.

    Args:
        actual: Output of the graph.
        expected: Output of torch in float32.
        exact: Output of torch in float64.
        min_error: Minimum error of torch, as a fraction of the largest value.
    """
    finite = np.isfinite(actual) & np.isfinite(expected) & np.isfinite(exact)
    if not finite.any():
        return 0.
    actual, expected, exact = (
        each[finite].astype(np.float64) for each in (actual, expected, exact))
    smallest = min_error * (np.abs(exact).max() or 1.)
    return float(np.abs(actual - exact).max() / max(np.abs(expected - exact).max(), smallest))


def iter_deviations(graph: Graph, size: Size, outputs: Arrays,
                    expected_outputs: Arrays) -> Iterator[tuple[float, float]]:
    """Yield the largest deviation and the largest value of each output.

    Raises:
        ExportError: If outputs cannot be compared.
    """
    for name, actual, expected in zip(graph.output_names, outputs, expected_outputs, strict=True):
        if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
            raise ExportError(f'{graph.name} for {format_size(size)}: {name} is {actual.dtype} '
                              f'{actual.shape}, but torch gives {expected.dtype} {expected.shape}')
        finite = np.isfinite(expected)
        if not (np.isfinite(actual) == finite).all():
            raise ExportError(f'{graph.name} for {format_size(size)}: {name} is NaN or infinite at '
                              'different positions than in torch')
        actual, expected = (values[finite].astype(np.float64) for values in (actual, expected))
        if expected.size:
            yield float(np.abs(actual - expected).max()), float(np.abs(expected).max())


def build_module_runner(module: nn.Module) -> Run:
    """Return a function that runs a module on copies of its inputs."""

    @torch.no_grad()
    def run(inputs: tuple[Tensor, ...]) -> Arrays:
        outputs = module(*(tensor.clone() for tensor in inputs))
        outputs = outputs if isinstance(outputs, tuple) else (outputs, )
        return [tensor.numpy() for tensor in outputs]

    return run


def build_file_runner(graph: Graph, path: Path) -> Run:
    """Return a function that runs a file with the runtime or torch, on the threads of torch."""
    if path.suffix == '.pt2':
        return build_module_runner(torch.export.load(path).module())
    session = Session(path, threads=torch.get_num_threads())

    def run_graph(inputs: tuple[Tensor, ...]) -> Arrays:
        arrays = (tensor.numpy() for tensor in inputs)
        feeds = dict(zip(graph.input_names, arrays, strict=True))
        return session.run(list(graph.output_names), feeds)

    return run_graph


def measure_time(inputs: tuple[Tensor, ...], *runs: Run) -> tuple[float, float]:
    """Return the median seconds of two functions, which alternate."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, times in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run(inputs)
            times.append(time.perf_counter() - start)
    module, file = map(median, seconds)
    return module, file


def list_files(path: Path) -> list[Path]:
    """Return the file of a graph, and that of its weights if it exists."""
    weights = path.with_suffix('.bin') if path.suffix == OPENVINO else path.with_name(
        f'{path.name}.data')
    return [path, weights] if weights.is_file() else [path]


def format_size(size: Size) -> str:
    batch, height, width = size
    return f'{format_count(batch, "image")} of {height} x {width}'
