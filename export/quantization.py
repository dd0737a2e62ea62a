"""Graphs with 8-bit integers, by static quantization of onnxruntime.

Convolutions and linear layers are quantized per channel. Weights use 7 of 8 bits, so that sums do
not overflow on any processor. Activation ranges are calibrated on images. Everything else stays in
float32: matmuls of attention, norms, softmax, activations, resizing.
"""
from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.atomic_files import write_json
from colonnade.common.console_logging import log_errors_only
from colonnade.common.errors import file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.runtime import ImageError, Model, load
from colonnade.runtime.images import SUFFIXES
from colonnade.runtime.metadata import METADATA_FILE

from .graphs import ExportError

OPERATORS = ['Conv', 'Gemm', 'MatMul']  # MatMul only with weights


@file_errors()
def find_calibration_images(path: str | Path | None, num_images: int) -> list[Path]:
    """Return images for calibration, evenly spaced in a folder and its subfolders.

    Args:
        path: Folder or image; None for no images.
        num_images: Maximum number of images.

    Raises:
        ExportError: If the folder contains no images.
    """
    if path is None:
        return []
    if num_images < 1:
        raise ExportError(f'--num-images must be at least 1, got {num_images}')
    path = Path(path)
    if not path.exists():
        raise ExportError(f'--calibration-images: no such file or folder: {path}')
    images = [path] if path.is_file() else sorted(
        each for each in path.rglob('*') if each.suffix.lower() in SUFFIXES)
    if not images:
        raise ExportError(f'--calibration-images: no images in {path}')
    indices = np.linspace(0, len(images) - 1, min(num_images, len(images))).round().astype(int)
    return [images[index] for index in indices]


def quantize_model(folder: Path, images: list[Path]) -> None:
    """Replace the graphs of an exported folder by quantized ones.

    Args:
        folder: Folder with ONNX graphs in float32, and a ``model.json``.
        images: Images for calibration, which the runtime preprocesses.

    Raises:
        ExportError: If an image cannot be read, or a graph gets no input from any of them.
        OSError: If the folder cannot be written.
    """
    model = load(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix='.int8-') as scratch:
        for name, graph in model.graphs.items():
            target = Path(scratch, graph.path.name)
            _quantize_graph(graph.path, target, CalibrationReader(model, name, images))
        for path in sorted(Path(scratch).iterdir()):
            path.replace(folder / path.name)
    metadata = json.loads((folder / METADATA_FILE).read_text(encoding='utf-8'))
    for each in metadata['graphs'].values():
        each.update(sha256=compute_sha256(folder / each['file']), weights=[])
    write_json(folder / METADATA_FILE, {**metadata, 'precision': 'int8'})


def _quantize_graph(source: Path, target: Path, inputs: CalibrationReader) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static  # optional
    from onnxruntime.quantization.shape_inference import quant_pre_process
    with log_errors_only(logging.getLogger()):  # onnxruntime logs to the root logger
        prepared = target.with_name(f'prepared-{target.name}')
        # onnxruntime's symbolic shape inference fails on computed sizes.
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            inputs,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=OPERATORS,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options=dict(MatMulConstBOnly=True))
        prepared.unlink()


class CalibrationReader:
    """Inputs of a graph for each image, as onnxruntime's ``CalibrationDataReader``.

    Graphs after others get the outputs of these, as in prediction.

    Args:
        model: Exported model.
        name: Name of the graph.
        images: Paths of the images.
    """

    def __init__(self, model: Model, name: str, images: list[Path]) -> None:
        self._model, self._name, self._images = model, name, images
        self._iterator = self._iter_inputs()

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next inputs by name, or None at the end."""
        return next(self._iterator, None)

    def _iter_inputs(self) -> Iterator[dict[str, np.ndarray]]:
        num_inputs = 0
        for path in self._images:
            try:
                inputs = self._record_inputs(path)
            except ImageError as error:
                raise ExportError(f'--calibration-images: {error}') from error
            num_inputs += len(inputs)
            yield from inputs
        if not num_inputs:
            raise ExportError(f'--calibration-images: the graph {self._name} does not run on any '
                              f'of {len(self._images)} images: use images with objects')

    def _record_inputs(self, image: Path) -> list[dict[str, np.ndarray]]:
        """Return the inputs of the graph while the model runs on an image."""
        recorded: list[dict[str, Any]] = []
        self._model.observe = \
            lambda graph, feeds: recorded.append(feeds) if graph == self._name else None
        try:
            self._model.predict(image)
        finally:
            self._model.observe = None
        return recorded
