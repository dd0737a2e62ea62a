"""Does an exported graph give what the model gives, on several sizes and batches, and how fast?

Rounding alone makes two programs differ, in some models by far more than in others. So graph and
model are both compared with the model in float64, and the graph may deviate by a multiple of what
the model does.
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

from colonnade.runtime.sessions import OPENVINO, load_session

from .graphs import ExportError, Graph, Size

ROUNDS = 5  # of timing, in turns
#: of the largest value of an output; smaller rounding errors of torch count as this much
LEAST_ERROR = 1e-6
#: as that, where a module cannot compute in float64 and the error of torch is unknown
ASSUMED_ERROR = 1e-5
#: graphs that deviate by so many tolerances are refused, and below that written with a warning
REFUSED = 10

Arrays = list[np.ndarray]
Run = Callable[[tuple[Tensor, ...]], Arrays]


@dataclass(frozen=True)
class Comparison:
    """A graph beside the module that it was made of.

    Attributes:
        name: Of the graph.
        num_sizes: How many sizes and batches were compared.
        absolute: The largest deviation of a value from torch.
        relative: The largest deviation of a value from torch, by the largest value of its output.
        factor: The largest deviation of an output from float64, by that of torch.
        output: The name of that output.
        num_bytes: Of the graph's files.
        seconds: Of the module and of the graph, for ``size``: the median of some runs in turns.
        size: Batch, height and width.
        warning: What is to be known before the graph is used; empty if nothing is.
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
        batch, height, width = self.size
        return (f'{self.name}: {self.num_bytes / 1e6:.1f} MB; {self.num_sizes} sizes and batches '
                f'deviate by at most {self.absolute:.1e}, {self.relative:.1e} of the largest '
                f'value; {batch} x 3 x {height} x {width} takes {graph:.1f} ms, torch '
                f'{module:.1f} ms')


def compare(graph: Graph, path: Path) -> Comparison:
    """Run a graph and its module on the same inputs of all its sizes.

    Args:
        graph: What was exported.
        path: Its file.

    Raises:
        ExportError: If the file does not run, or gives outputs of other number, shape or type.
    """
    run_module, run_file = module_runner(graph.module), file_runner(graph, path)
    run_exact = module_runner(copy.deepcopy(graph.module).double())
    absolute = relative = 0.
    factor, output = 0., graph.output_names[0]
    for size in graph.sizes:
        inputs = graph.make_inputs(size)
        expected = run_module(inputs)
        try:
            found = run_file(inputs)
        except Exception as error:  # onnxruntime's own, of several kinds
            raise ExportError(f'{graph.name} does not run for {shown(size)}: {error}') from error
        for deviation, largest in deviations(graph, size, found, expected):
            absolute = max(absolute, deviation)
            relative = max(relative, deviation / largest if largest else deviation)
        exact = exact_outputs(run_exact, inputs, expected)
        least = ASSUMED_ERROR if exact is None else LEAST_ERROR
        for name, *arrays in zip(
                graph.output_names, found, expected, exact or expected, strict=True):
            factor, output = max((factor, output), (error_factor(*arrays, least=least), name))
    size = max(graph.sizes, key=lambda size: size[1] * size[2] / size[0])
    seconds = timed(graph.make_inputs(size), run_module, run_file)
    num_bytes = sum(file.stat().st_size for file in files_of(path))
    return Comparison(graph.name, len(graph.sizes), absolute, relative, factor, output, num_bytes,
                      seconds, size)


def verify(graph: Graph, path: Path, tolerance: float) -> Comparison:
    """:func:`compare`, with a warning if the deviation is above a tolerance.

    Args:
        graph: What was exported.
        path: Its file.
        tolerance: Of the graph's deviations from float64, by those of torch.

    Raises:
        ExportError: As :func:`compare`, or if the deviation is far above the tolerance.
    """
    found = compare(graph, path)
    if found.factor <= tolerance:
        return found
    deviation = (
        f'{found.name}: the output {found.output} deviates from float64 by {found.factor:.3g} '
        f'times the rounding error of torch, and --tolerance is {tolerance:g}')
    if found.factor > REFUSED * tolerance:
        raise ExportError(
            f'{deviation}: more than {REFUSED} tolerances are no rounding, and nothing is written. '
            f'To write it nevertheless, pass --tolerance {math.ceil(found.factor)}, and compare '
            'its predictions on your own images with those of colonnade predict')
    return replace(
        found,
        warning=f'{deviation}. Compare predictions on your own images with those of '
        'colonnade predict')


def exact_outputs(run: Run, inputs: tuple[Tensor, ...], expected: Arrays) -> Arrays | None:
    """Return the outputs of a module in float64; None where it cannot compute so.

    Args:
        run: Of the module in float64.
        inputs: In float32.
        expected: The outputs in float32.
    """
    doubled = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    try:
        found = run(doubled)
    except (RuntimeError, TypeError):  # an operator of the module has no float64
        return None
    same = len(found) == len(expected) and all(
        ours.shape == theirs.shape for ours, theirs in zip(found, expected, strict=True))
    return found if same else None


def error_factor(found: np.ndarray,
                 expected: np.ndarray,
                 exact: np.ndarray,
                 *,
                 least: float = LEAST_ERROR) -> float:
    """Return by how much more an output deviates from float64 than that of torch.

    Args:
        found: Of the graph.
        expected: Of torch, in float32.
        exact: Of torch, in float64.
        least: Smallest error of torch to compare with, as a fraction of the largest value.
    """
    finite = np.isfinite(found) & np.isfinite(expected) & np.isfinite(exact)
    if not finite.any():
        return 0.
    found, expected, exact = (each[finite].astype(np.float64) for each in (found, expected, exact))
    smallest = least * (np.abs(exact).max() or 1.)
    return float(np.abs(found - exact).max() / max(np.abs(expected - exact).max(), smallest))


def deviations(graph: Graph, size: Size, found: Arrays,
               expected: Arrays) -> Iterator[tuple[float, float]]:
    """The largest deviation and the largest value of each output.

    Raises:
        ExportError: If outputs are not comparable.
    """
    for name, ours, theirs in zip(graph.output_names, found, expected, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise ExportError(f'{graph.name} for {shown(size)}: {name} is {ours.dtype} '
                              f'{ours.shape}, and torch gives {theirs.dtype} {theirs.shape}')
        if not (np.isfinite(ours) == np.isfinite(theirs)).all():
            raise ExportError(f'{graph.name} for {shown(size)}: other values of {name} are '
                              'infinite or NaN than in torch')
        finite = np.isfinite(theirs)
        ours, theirs = (values[finite].astype(np.float64) for values in (ours, theirs))
        if theirs.size:
            yield float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())


def module_runner(module: nn.Module) -> Run:
    """Return what runs a module, or an archive, on copies of its inputs."""

    @torch.no_grad()
    def run(inputs: tuple[Tensor, ...]) -> Arrays:
        found = module(*(tensor.clone() for tensor in inputs))
        return [tensor.numpy() for tensor in (found if isinstance(found, tuple) else (found, ))]

    return run


def file_runner(graph: Graph, path: Path) -> Run:
    """Runs a graph as the runtime does, or an archive by torch, on as many threads as torch."""
    if path.suffix == '.pt2':
        return module_runner(torch.export.load(path).module())
    session = load_session(path, None, torch.get_num_threads())

    def run_graph(inputs: tuple[Tensor, ...]) -> Arrays:
        arrays = (tensor.numpy() for tensor in inputs)
        feeds = dict(zip(graph.input_names, arrays, strict=True))
        return session.run(list(graph.output_names), feeds)

    return run_graph


def timed(inputs: tuple[Tensor, ...], *runs: Run) -> tuple[float, float]:
    """Seconds of each of two, which take turns; the median."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, taken in zip(runs, seconds, strict=True):
            started = time.perf_counter()
            run(inputs)
            taken.append(time.perf_counter() - started)
    module, file = map(median, seconds)
    return module, file


def files_of(path: Path) -> list[Path]:
    """A graph's file, and that of its weights if they lie beside it."""
    beside = path.with_suffix('.bin') if path.suffix == OPENVINO else path.with_name(
        f'{path.name}.data')
    return [path, beside] if beside.is_file() else [path]


def shown(size: Size) -> str:
    return '{} x 3 x {} x {}'.format(*size)
