"""From the outputs of a detector's graphs to instances, by the steps of mmdet's inference."""
from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from .preprocessing import Prepared


class Found(NamedTuple):
    """Instances in pixels of the image.

    Attributes:
        boxes: ``(n, 4)``.
        scores: ``(n,)``.
        labels: ``(n,)``.
        masks: ``(n, H, W)``, bool; None of a model of boxes.
    """
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None = None


class Graphs(Protocol):
    """What runs graphs; :class:`.model.Model` does."""

    def run(self, name: str, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of a graph."""
        ...

    def run_image(self, name: str, images: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        """The outputs of a graph that takes an image first."""
        ...


class Detection(Protocol):
    """How a detector finds instances."""

    @property
    def graph_names(self) -> tuple[str, ...]:
        """The graphs that it runs."""
        ...

    def __call__(self, prepared: Prepared, graphs: Graphs) -> Found:
        """The instances of an image."""
        ...
