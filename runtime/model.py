"""An exported model that predicts."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .description import Graph, Section, read_description, read_graphs
from .detection import Detection
from .errors import ModelError
from .images import Source, name_of, read_image
from .one_stage import read_box_queries, read_mask_queries, read_points
from .preprocessing import Prepared, read_preprocess
from .results import Instances, LabelMap, Maps
from .segmentation import read_segmentation
from .sessions import Session, sessions_of
from .two_stage import read_two_stage


def load(folder: str | Path,
         *,
         providers: Sequence[str] | None = None,
         threads: int | None = None) -> Model:
    """A model that ``tools/export.py`` has written.

    Args:
        folder: Its folder.
        providers: What computes graphs of ONNX, as onnxruntime names it, the preferred first:
            ``['CUDAExecutionProvider', 'CPUExecutionProvider']``. The CPU, if not given.
        threads: That compute; as many as there are cores, if not given.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
        ModelError: If a file is damaged or does not say what it must.
        ValueError: If there is no such provider, or ``threads`` is below 1.
    """
    folder = Path(folder)
    about = read_description(folder)
    graphs = read_graphs(about, folder)
    return Model(about, graphs, sessions_of(graphs, providers, threads))


class Model:
    """A detector, a segmenter, or a backbone with its pyramid; :func:`load` makes it.

    Attributes:
        task: ``'segmentation'``, ``'detection'`` or ``'features'``.
        classes: The names of its classes; none of features.
        palette: A colour of each, ``(red, green, blue)``.
        preprocess: How images are prepared.
        graphs: Its networks.
        observe: Called with the name of a graph and its inputs before each run, if given.
    """

    def __init__(self, about: Section, graphs: Mapping[str, Graph],
                 sessions: Mapping[str, Session]) -> None:
        self.graphs, self._sessions = graphs, sessions
        self.observe: Callable[[str, dict[str, np.ndarray]], None] | None = None
        self.task = about.choice('task', *TASKS)
        self.classes, self.palette = classes_of(about)
        self.preprocess = read_preprocess(about.need('preprocess'))
        self._predict = TASKS[self.task](self, about)

    def __repr__(self) -> str:
        return f'{self.task}, {len(self.classes)} classes, graphs: {", ".join(self.graphs)}'

    def run(self, name: str, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of a graph.

        Args:
            name: Of the graph.
            *inputs: In the order of its inputs.

        Raises:
            ModelError: If there is no such graph, it takes another number of inputs, or cannot be
                computed.
        """
        if name not in self.graphs:
            raise ModelError(f'there is no graph {name!r}: there are {", ".join(self.graphs)}')
        if len(inputs) != len(self.graphs[name].inputs):
            raise ModelError(f'graph {name} takes {", ".join(self.graphs[name].inputs)}, got '
                             f'{len(inputs)} arrays')
        feeds = dict(zip(self.graphs[name].inputs, inputs, strict=True))
        if self.observe is not None:
            self.observe(name, feeds)
        try:
            return self._sessions[name].run(list(self.graphs[name].outputs), feeds)
        except Exception as error:  # their own, of several kinds
            raise ModelError(f'{self.graphs[name].path} cannot be computed: {error}') from error

    def run_image(self, name: str, images: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        """The outputs of a graph for images ``(B, 3, H, W)``, padded to the sizes that it takes.

        Args:
            name: Of the graph.
            images: Its first input.
            *others: Its further inputs.
        """
        return self.run(name, self.preprocess.for_graphs(images), *others)

    def predict(self, image: Source) -> Any:
        """What the model finds in an image.

        Args:
            image: A path, an image of Pillow's, RGB values ``(H, W, 3)`` of type uint8, or the
                content of a file. OpenCV has BGR values: turn them by ``image[..., ::-1]``.

        Returns:
            A :class:`LabelMap`, :class:`Instances` or :class:`Maps`, by the task.

        Raises:
            ImageError: If the image cannot be read or prepared.
        """
        path = str(image) if isinstance(image, (str, Path)) else None
        return self._predict(self.preprocess(read_image(image), name_of(image)), path)


def classes_of(about: Section) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...]]:
    """The classes and their colours.

    Raises:
        ModelError: If they are no names and colours, or not as many.
    """
    classes = about.get('classes', list, 'a list of names', [])
    palette = about.get('palette', list, 'a list of colours', [])
    if any(not isinstance(name, str) for name in classes):
        raise about.fault('classes', 'a list of names', classes)
    wanted = f'{len(classes)} colours of three numbers from 0 to 255'
    if len(palette) != len(classes) or not all(map(is_colour, palette)):
        raise about.fault('palette', wanted, palette)
    return tuple(classes), tuple((r, g, b) for r, g, b in palette)


def is_colour(value: Any) -> bool:
    return (isinstance(value, list) and len(value) == 3
            and all(type(part) is int and 0 <= part <= 255 for part in value))


def graph_named(about: Section, name: str) -> str:
    """``name``, if there is a graph of it.

    Raises:
        ModelError: If there is none.
    """
    about.need('graphs').need(name)
    return name


Predict = Callable[[Prepared, 'str | None'], Any]


def segmenter(model: Model, about: Section) -> Predict:
    """How a segmenter predicts."""
    postprocess = read_segmentation(about.need('postprocess'), len(model.classes))
    run = partial(model.run_image, graph_named(about, 'model'))

    def predict(prepared: Prepared, source: str | None) -> LabelMap:
        labels = postprocess(prepared, run)
        return LabelMap(prepared.size, model.classes, model.palette, labels, source)

    return predict


def features(model: Model, about: Section) -> Predict:
    """How a backbone with its pyramid predicts."""
    graph = model.graphs[graph_named(about, 'features')]

    def predict(prepared: Prepared, source: str | None) -> Maps:
        found = model.run_image('features', prepared.array[None])
        maps = dict(zip(graph.outputs, (each[0] for each in found), strict=True))
        return Maps(prepared.size, maps, source)

    return predict


def detector(model: Model, about: Section) -> Predict:
    """How a detector predicts."""
    section = about.need('postprocess')
    find = DETECTORS[section.choice('kind', *DETECTORS)](section)
    for name in find.graph_names:
        graph_named(about, name)

    def predict(prepared: Prepared, source: str | None) -> Instances:
        found = find(prepared, model)
        return Instances(prepared.size, model.classes, model.palette, *found, source).sorted()

    return predict


#: what reads how a detector of each kind finds instances
DETECTORS: dict[str, Callable[[Section], Detection]] = dict(
    two_stage=read_two_stage,
    points=read_points,
    box_queries=read_box_queries,
    mask_queries=read_mask_queries)
#: how models of each task predict
TASKS: dict[str, Callable[[Model, Section], Predict]] = dict(
    segmentation=segmenter, detection=detector, features=features)
