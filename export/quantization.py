"""Graphs of 8-bit whole numbers, by onnxruntime's own static quantisation.

Convolutions and linear layers are quantised. Their weights take 7 of 8 bits for each channel:
sums do not overflow then, on any processor. Ranges of what goes in and out are those of the user's
images. All else stays float32: products of attention, norms, softmax, activations, resizing.
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
from colonnade.runtime.description import NAME
from colonnade.runtime.images import SUFFIXES

from .graphs import ExportError

OPERATORS = ['Conv', 'Gemm', 'MatMul']  # of MatMul, those by a weight


@file_errors()
def calibration_images(place: str | Path | None, num_images: int) -> list[Path]:
    """The images that ranges are taken of: evenly from a folder and those below it.

    Args:
        place: The folder, or one image; None for no images.
        num_images: At most.

    Raises:
        ExportError: If there are none in it.
    """
    if place is None:
        return []
    if num_images < 1:
        raise ExportError(f'--num-images must be at least 1, got {num_images}')
    place = Path(place)
    if not place.exists():
        raise ExportError(f'--calibrate: no folder {place}')
    found = [place] if place.is_file() else sorted(
        path for path in place.rglob('*') if path.suffix.lower() in SUFFIXES)
    if not found:
        raise ExportError(f'--calibrate: no images in {place}')
    chosen = np.linspace(0, len(found) - 1, min(num_images, len(found))).round().astype(int)
    return [found[index] for index in chosen]


def quantise(folder: Path, images: list[Path]) -> None:
    """Replace the graphs of an exported folder by those of whole numbers.

    Args:
        folder: With graphs of ONNX in float32, and a ``model.json``.
        images: That ranges are taken of. The runtime prepares them.

    Raises:
        ExportError: If an image cannot be read, or a graph gets no input from any of them.
        OSError: If the folder cannot be written.
    """
    model = load(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix='.int8-') as scratch:
        for name, graph in model.graphs.items():
            quantise_graph(graph.path, Path(scratch, graph.path.name), Inputs(model, name, images))
        for path in sorted(Path(scratch).iterdir()):  # all are made
            path.replace(folder / path.name)
    about = json.loads((folder / NAME).read_text(encoding='utf-8'))
    for each in about['graphs'].values():
        each.update(sha256=compute_sha256(folder / each['file']), weights=[])
    write_json(folder / NAME, {**about, 'precision': 'int8'})


def quantise_graph(source: Path, target: Path, inputs: Inputs) -> None:
    """Write a graph of whole numbers.

    Args:
        source: The graph in float32.
        target: File to write.
        inputs: What it takes for some images.

    Raises:
        ExportError: If onnxruntime cannot quantise it.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    with log_errors_only(logging.getLogger()):  # to which onnxruntime's tool logs its remarks
        prepared = target.with_name(f'prepared-{target.name}')
        # its own inference of symbolic shapes fails on sizes that are computed
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


class Inputs:
    """What a graph of a model takes for each image; onnxruntime's ``CalibrationDataReader``.

    Graphs behind others see what these give, as when the model predicts.

    Args:
        model: The exported model.
        name: Of the graph.
        images: Paths.
    """

    def __init__(self, model: Model, name: str, images: list[Path]) -> None:
        self._model, self._name, self._images = model, name, images
        self._waiting = self._each()

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next inputs by their names; None at the end."""
        return next(self._waiting, None)

    def _each(self) -> Iterator[dict[str, np.ndarray]]:
        seen = 0
        for path in self._images:
            try:
                taken = fed(self._model, self._name, path)
            except ImageError as error:
                raise ExportError(f'--calibrate: {error}') from error
            seen += len(taken)
            yield from taken
        if not seen:
            raise ExportError(f'--calibrate: none of {len(self._images)} images gives the graph '
                              f'{self._name} an input: take images with objects')


def fed(model: Model, name: str, image: Path) -> list[dict[str, np.ndarray]]:
    """What a graph takes while a model predicts an image."""
    found: list[dict[str, Any]] = []
    model.observe = lambda graph, feeds: found.append(feeds) if graph == name else None
    try:
        model.predict(image)
    finally:
        model.observe = None
    return found
