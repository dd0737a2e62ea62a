"""Sessions that run graphs with onnxruntime or OpenVINO."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .metadata import ModelError

OPENVINO = '.xml'
RunGraph = Callable[[list[str], dict[str, np.ndarray]], list[np.ndarray]]


@contextmanager
def explain_errors(failure: str) -> Iterator[None]:
    """Context manager that turns errors of onnxruntime and OpenVINO into a ModelError."""
    try:
        yield
    except Exception as error:  # Both libraries define many error classes.
        raise ModelError(f'{failure}: {error}') from error


class Session:
    """A loaded graph.

    Args:
        path: ONNX or OpenVINO file.
        providers: Execution providers of onnxruntime. Defaults to the CPU.
        threads: Number of threads. Defaults to that of the library.

    Raises:
        ModelError: If the library is not installed, or cannot load the file.
        ValueError: If a provider is not available, or ``threads`` is less than 1.
    """

    def __init__(self,
                 path: Path,
                 providers: Sequence[str] | None = None,
                 threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f'threads must be at least 1, got {threads}')
        library = 'openvino' if path.suffix == OPENVINO else 'onnxruntime'
        if providers and library == 'openvino':
            raise ValueError(f'providers apply only to onnxruntime, but {path} is an OpenVINO '
                             'graph')
        load = load_openvino if library == 'openvino' else load_onnx
        try:
            self._path, self._run = path, load(path, list(providers or ()), threads)
        except ModuleNotFoundError as error:
            raise ModelError(f'{path} needs {library}: run pip install {library}') from error

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return outputs by name, for inputs by name.

        Raises:
            ModelError: If the graph fails.
        """
        with explain_errors(f'{self._path} failed'):
            return self._run(outputs, feeds)


def load_onnx(path: Path, providers: list[str], threads: int | None) -> RunGraph:
    """Return the function that runs an ONNX graph with onnxruntime."""
    import onnxruntime  # OpenVINO graphs do not need it.
    available = onnxruntime.get_available_providers()
    for name in providers:
        if name not in available:
            raise ValueError(f'provider {name} is not available: choose from '
                             f'{", ".join(available)}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # Errors are also raised.
    options.intra_op_num_threads = threads or 0
    with explain_errors(f'{path} cannot be loaded'):
        return onnxruntime.InferenceSession(
            str(path), options, providers=providers or ['CPUExecutionProvider']).run


def load_openvino(path: Path, _: list[str], threads: int | None) -> RunGraph:
    """Return the function that runs an OpenVINO graph in float32 on the CPU."""
    import openvino  # optional
    config: dict[str, Any] = dict(INFERENCE_PRECISION_HINT='f32')
    if threads is not None:
        config['INFERENCE_NUM_THREADS'] = threads
    with explain_errors(f'{path} cannot be loaded'):
        compiled = openvino.Core().compile_model(str(path), 'CPU', config)

    def run(outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        arrays = compiled(feeds)
        return [arrays[name] for name in outputs]

    return run
