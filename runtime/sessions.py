"""What computes graphs: onnxruntime those of ONNX, OpenVINO its own."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .description import Graph
from .errors import ModelError

OPENVINO = '.xml'


class Session(Protocol):
    """A graph that is loaded."""

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs of some names, for inputs by their names."""


class OpenVinoSession:
    """A graph of OpenVINO's, computed in float32.

    Args:
        path: Of its ``.xml``; the weights lie beside it.
        threads: That compute; as many as OpenVINO takes, if not given.
    """

    def __init__(self, path: Path, threads: int | None) -> None:
        import openvino  # which other graphs do not need
        config: dict[str, Any] = dict(INFERENCE_PRECISION_HINT='f32')
        if threads is not None:
            config['INFERENCE_NUM_THREADS'] = threads
        self._compiled = openvino.Core().compile_model(str(path), 'CPU', config)

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See :class:`Session`."""
        found = self._compiled(feeds)
        return [found[name] for name in outputs]


def sessions_of(graphs: Mapping[str, Graph], providers: Sequence[str] | None,
                threads: int | None) -> dict[str, Session]:
    """The session of each graph.

    Raises:
        ModelError: If one cannot be loaded.
        ValueError: If there is no such provider, or ``threads`` is below 1.
    """
    if threads is not None and threads < 1:
        raise ValueError(f'threads must be at least 1, got {threads}')
    return {name: session_of(graph.path, providers, threads) for name, graph in graphs.items()}


def session_of(path: Path, providers: Sequence[str] | None, threads: int | None) -> Session:
    """The session of a graph; see :func:`sessions_of`."""
    needed = 'openvino' if path.suffix == OPENVINO else 'onnxruntime'
    if providers and needed == 'openvino':
        raise ValueError(f"providers are onnxruntime's, and {path} is a graph of OpenVINO's")
    try:
        if needed == 'openvino':
            return OpenVinoSession(path, threads)
        return onnx_session(path, providers, threads)
    except ModuleNotFoundError as error:
        raise ModelError(f'{path} needs {needed}: pip install {needed}') from error
    except ValueError:
        raise
    except Exception as error:  # their own, of several kinds
        raise ModelError(f'{path} cannot be loaded: {error}') from error


def onnx_session(path: Path, providers: Sequence[str] | None, threads: int | None) -> Session:
    """onnxruntime's session.

    Raises:
        ValueError: If there is no such provider.
    """
    import onnxruntime  # which reading images does not need
    there = onnxruntime.get_available_providers()
    for name in providers or ():
        if name not in there:
            raise ValueError(f'there is no provider {name} here: there are {", ".join(there)}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised, too
    options.intra_op_num_threads = threads or 0
    return onnxruntime.InferenceSession(
        str(path), options, providers=list(providers or ['CPUExecutionProvider']))
