"""An exported model that predicts."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .detection import Detector
from .images import Source, get_image_name
from .metadata import Graph, ModelError, Section, read_graphs, read_metadata
from .one_stage import read_box_queries, read_mask_queries, read_points
from .panoptic import read_panoptic
from .preprocessing import PreparedImage, read_preprocess
from .results import FeatureMaps, Instances, LabelMap, PanopticMap, number_segments
from .segmentation import read_segmentation
from .sessions import Session
from .two_stage import read_two_stage


def load(folder: str | Path,
         *,
         providers: Sequence[str] | None = None,
         threads: int | None = None) -> Model:
    """Load a model written by ``colonnade export``.

    Args:
        folder: Exported folder.
        providers: Execution providers of onnxruntime in order of preference, as in
            ``['CUDAExecutionProvider', 'CPUExecutionProvider']``. Defaults to the CPU.
        threads: Number of threads. Defaults to one per core.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        ModelError: If a file is damaged or invalid.
        ValueError: If a provider does not exist, or ``threads`` is below 1.
    """
    folder = Path(folder)
    metadata = read_metadata(folder)
    graphs = read_graphs(metadata, folder)
    sessions = {name: Session(graph.path, providers, threads) for name, graph in graphs.items()}
    return Model(metadata, graphs, sessions)


class Model:
    """A detector, a segmenter, or a backbone with its pyramid; built by :func:`load`.

    Attributes:
        task: ``'segmentation'``, ``'detection'``, ``'panoptic'`` or ``'features'``.
        classes: Class names; empty for features.
        palette: Color of each class, ``(red, green, blue)``.
        preprocess: Preprocessing of images.
        graphs: Graphs by name.
        observe: Function that is called with the name of a graph and its inputs before each run.
    """

    def __init__(self, metadata: Section, graphs: Mapping[str, Graph],
                 sessions: Mapping[str, Session]) -> None:
        self.graphs, self._sessions = graphs, sessions
        self.observe: Callable[[str, dict[str, np.ndarray]], None] | None = None
        self.task = metadata.get_choice('task', *TASKS)
        self.classes, self.palette = read_classes(metadata)
        self.preprocess = read_preprocess(metadata.require_section('preprocess'))
        self._predict = TASKS[self.task](self, metadata)

    def __repr__(self) -> str:
        return f'{self.task}, {len(self.classes)} classes, graphs: {", ".join(self.graphs)}'

    def run(self, name: str, *inputs: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of a graph.

        Raises:
            ModelError: If the graph does not exist, has another number of inputs, or fails.
        """
        if name not in self.graphs:
            raise ModelError(f'unknown graph {name!r}: choose from {", ".join(self.graphs)}')
        if len(inputs) != len(self.graphs[name].inputs):
            raise ModelError(f'graph {name} expects the inputs '
                             f'{", ".join(self.graphs[name].inputs)}, got {len(inputs)} arrays')
        feeds = dict(zip(self.graphs[name].inputs, inputs, strict=True))
        if self.observe is not None:
            self.observe(name, feeds)
        return self._sessions[name].run(list(self.graphs[name].outputs), feeds)

    def run_image(self, name: str, images: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of a graph for images ``(B, c, H, W)``, padded to a supported size."""
        return self.run(name, self.preprocess.pad_for_graphs(images), *others)

    def predict(self, image: Source) -> Any:
        """Predict an image.

        Args:
            image: Path, Pillow image, RGB values ``(H, W, 3)`` of type uint8, or content of a file.
                Convert BGR values from OpenCV with ``image[..., ::-1]``.

        Returns:
            A :class:`LabelMap`, :class:`Instances`, :class:`PanopticMap` or :class:`FeatureMaps`,
            depending on the task.

        Raises:
            ImageError: If the image cannot be read or prepared.
        """
        path = str(image) if isinstance(image, (str, Path)) else None
        return self._predict(
            self.preprocess(self.preprocess.read(image), get_image_name(image)), path)


def read_classes(metadata: Section) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...]]:
    """Return class names and colors."""
    classes = metadata.get('classes', list, 'a list of names', [])
    palette = metadata.get('palette', list, 'a list of colors', [])
    if any(not isinstance(name, str) for name in classes):
        raise metadata.report_build_errors('classes', 'a list of names', classes)
    if len(palette) != len(classes) or not all(map(is_color, palette)):
        expected = f'{len(classes)} colors of three integers from 0 to 255'
        raise metadata.report_build_errors('palette', expected, palette)
    return tuple(classes), tuple((r, g, b) for r, g, b in palette)


def is_color(value: Any) -> bool:
    """Return True for a list of three integers from 0 to 255."""
    return (isinstance(value, list) and len(value) == 3
            and all(type(part) is int and 0 <= part <= 255 for part in value))


Predict = Callable[[PreparedImage, 'str | None'], Any]


def build_segmenter(model: Model, metadata: Section) -> Predict:
    """Return a function that predicts label maps."""
    metadata.require_section('graphs').require_section('model')
    postprocess = read_segmentation(metadata.require_section('postprocess'), len(model.classes))
    run = partial(model.run_image, 'model')

    def predict(image: PreparedImage, source: str | None) -> LabelMap:
        labels = postprocess(image, run)
        return LabelMap(image.size, model.classes, model.palette, labels, source)

    return predict


def build_feature_extractor(model: Model, metadata: Section) -> Predict:
    """Return a function that predicts feature maps."""
    metadata.require_section('graphs').require_section('features')

    def predict(image: PreparedImage, source: str | None) -> FeatureMaps:
        outputs = model.run_image('features', image.array[None])
        names = model.graphs['features'].outputs
        maps = dict(zip(names, (output[0] for output in outputs), strict=True))
        return FeatureMaps(image.size, maps, source)

    return predict


def build_detector(model: Model, metadata: Section) -> Predict:
    """Return a function that predicts instances."""
    section = metadata.require_section('postprocess')
    detect = DETECTORS[section.get_choice('kind', *DETECTORS)](section)
    for name in detect.graph_names:
        metadata.require_section('graphs').require_section(name)

    def predict(image: PreparedImage, source: str | None) -> Instances:
        detections = detect(image, model)
        return Instances(image.size, model.classes, model.palette, *detections, source).sorted()

    return predict


def build_panoptic_segmenter(model: Model, metadata: Section) -> Predict:
    """Return a function that predicts segments."""
    metadata.require_section('graphs').require_section('model')
    postprocess = read_panoptic(metadata.require_section('postprocess'), len(model.classes))
    run = partial(model.run_image, 'model')

    def predict(image: PreparedImage, source: str | None) -> PanopticMap:
        segments, labels = number_segments(postprocess(image, run), len(model.classes))
        return PanopticMap(image.size, model.classes, model.palette, segments, labels,
                           postprocess.num_things, source)

    return predict


#: kind of a detector -> function that reads its postprocessing
DETECTORS: dict[str, Callable[[Section], Detector]] = dict(
    two_stage=read_two_stage,
    points=read_points,
    box_queries=read_box_queries,
    mask_queries=read_mask_queries)
#: task -> function that builds the prediction function
TASKS: dict[str, Callable[[Model, Section], Predict]] = dict(
    segmentation=build_segmenter,
    detection=build_detector,
    panoptic=build_panoptic_segmenter,
    features=build_feature_extractor)
