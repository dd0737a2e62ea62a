"""Sessions that run graphs with onnxruntime or OpenVINO."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .metadata import Graph, ModelError

OPENVINO = '.xml'


class Session(Protocol):
    """A loaded graph."""

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return outputs by name, for inputs by name."""


class OpenVinoSession:
    """An OpenVINO graph, computed in float32 on the CPU."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import openvino  # optional
        config: dict[str, Any] = dict(INFERENCE_PRECISION_HINT='f32')
        if threads is not None:
            config['INFERENCE_NUM_THREADS'] = threads
        self._compiled = openvino.Core().compile_model(str(path), 'CPU', config)

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See :class:`Session`."""
        arrays = self._compiled(feeds)
        return [arrays[name] for name in outputs]


def load_sessions(graphs: Mapping[str, Graph], providers: Sequence[str] | None,
                  threads: int | None) -> dict[str, Session]:
    """Load the session of each graph."""
    if threads is not None and threads < 1:
        raise ValueError(f'threads must be at least 1, got {threads}')
    return {name: load_session(graph.path, providers, threads) for name, graph in graphs.items()}


def load_session(path: Path, providers: Sequence[str] | None, threads: int | None) -> Session:
    """Load the session of a graph; see :func:`load_sessions`."""
    library = 'openvino' if path.suffix == OPENVINO else 'onnxruntime'
    if providers and library == 'openvino':
        raise ValueError(f'providers apply only to onnxruntime, but {path} is an OpenVINO graph')
    try:
        if library == 'openvino':
            return OpenVinoSession(path, threads)
        import onnxruntime  # OpenVINO graphs do not need it.
        available = onnxruntime.get_available_providers()
        for name in providers or ():
            if name not in available:
                raise ValueError(f'provider {name} is not available: choose from '
                                 f'{", ".join(available)}')
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # Errors are also raised.
        options.intra_op_num_threads = threads or 0
        return onnxruntime.InferenceSession(
            str(path), options, providers=list(providers or ['CPUExecutionProvider']))
    except ModuleNotFoundError as error:
        raise ModelError(f'{path} needs {library}: run pip install {library}') from error
    except ValueError:
        raise
    except Exception as error:  # Both libraries define many error classes.
        raise ModelError(f'{path} cannot be loaded: {error}') from error
