"""Does an exported graph give what the model gives, on several sizes and batches, and how fast?"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from colonnade.runtime.sessions import OPENVINO, session_of

from .graphs import ExportError, Graph, Size

ROUNDS = 5  # of timing, in turns

Arrays = list[np.ndarray]
Run = Callable[[tuple[Tensor, ...]], Arrays]


@dataclass(frozen=True)
class Comparison:
    """A graph beside the module that it was made of.

    Attributes:
        name: Of the graph.
        num_sizes: How many sizes and batches were compared.
        absolute: The largest deviation of a value.
        relative: The largest deviation of a value, by the largest value of its output.
        num_bytes: Of the graph's files.
        seconds: Of the module and of the graph, for ``size``: the median of some runs in turns.
        size: Batch, height and width.
    """
    name: str
    num_sizes: int
    absolute: float
    relative: float
    num_bytes: int
    seconds: tuple[float, float]
    size: Size

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
    run_module, run_file = module_runner(graph), file_runner(graph, path)
    absolute = relative = 0.
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
    size = max(graph.sizes, key=lambda size: size[1] * size[2] / size[0])
    seconds = timed(graph.make_inputs(size), run_module, run_file)
    num_bytes = sum(file.stat().st_size for file in files_of(path))
    return Comparison(graph.name, len(graph.sizes), absolute, relative, num_bytes, seconds, size)


def verify(graph: Graph, path: Path, tolerance: float) -> Comparison:
    """:func:`compare`, and raise an ExportError if the deviation is above a tolerance.

    Args:
        graph: What was exported.
        path: Its file.
        tolerance: Of deviations, by the largest value of an output.
    """
    found = compare(graph, path)
    if found.relative > tolerance:
        raise ExportError(f'{found}: more than the tolerance of {tolerance:g}')
    return found


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


def module_runner(graph: Graph) -> Run:
    """Runs the module."""

    @torch.no_grad()
    def run(inputs: tuple[Tensor, ...]) -> Arrays:
        found = graph.module(*(tensor.clone() for tensor in inputs))
        return [tensor.numpy() for tensor in (found if isinstance(found, tuple) else (found, ))]

    return run


def file_runner(graph: Graph, path: Path) -> Run:
    """Runs a graph as the runtime does, or an archive by torch, on as many threads as torch."""
    if path.suffix == '.pt2':
        program = torch.export.load(path).module()

        @torch.no_grad()
        def run_archive(inputs: tuple[Tensor, ...]) -> Arrays:
            found = program(*inputs)
            return [tensor.numpy() for tensor in (found if isinstance(found, tuple) else (found, ))]

        return run_archive
    session = session_of(path, None, torch.get_num_threads())

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
