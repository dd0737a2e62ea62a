"""Graphs of ONNX as OpenVINO's own, which it computes on Intel's processors and others."""
from __future__ import annotations

from pathlib import Path

from .graphs import ExportError


def to_openvino(path: Path, target: Path) -> None:
    """Write a graph of ONNX as OpenVINO's: an ``.xml``, and a ``.bin`` with its weights in float32.

    Args:
        path: Of the graph of ONNX, which is removed.
        target: Ends in ``.xml``.

    Raises:
        ExportError: If OpenVINO is missing or cannot convert it; says which operator.
    """
    import openvino  # which other formats do not need
    try:
        model = openvino.convert_model(str(path))
    except Exception as error:  # its own, of several kinds
        raise ExportError(f'{path.stem} cannot be exported for OpenVINO: {error}') from error
    openvino.save_model(model, str(target), compress_to_fp16=False)
    for file in (path, path.with_name(f'{path.name}.data')):  # large weights lie beside it
        file.unlink(missing_ok=True)
