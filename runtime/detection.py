"""Detections of exported detectors, and masks as mmdet computes them.

Shapes: ``n`` objects, ``h, w`` a predicted mask, ``H, W`` the image.
"""
from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from .preprocessing import PreparedImage, Size


class Detections(NamedTuple):
    """Instances in pixels of the image."""
    boxes: np.ndarray  # (n, 4)
    scores: np.ndarray  # (n,)
    labels: np.ndarray  # (n,)
    masks: np.ndarray | None = None  # (n, H, W), bool


class GraphRunner(Protocol):
    """Runner of graphs, such as :class:`.model.Model`."""

    def run(self, name: str, *inputs: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of a graph."""

    def run_image(self, name: str, images: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of a graph whose first input is an image."""


class Detector(Protocol):
    """Computation of instances from the outputs of graphs, by the steps of mmdet."""

    @property
    def graph_names(self) -> tuple[str, ...]:
        """Names of the graphs that it runs."""

    def __call__(self, image: PreparedImage, graphs: GraphRunner) -> Detections:
        """Return the instances of an image."""


def paste(masks: np.ndarray, boxes: np.ndarray, size: Size, threshold: float) -> np.ndarray:
    """Paste probabilities ``(n, h, w)`` of boxes ``(n, 4)`` into an image, bilinearly.

    Returns:
        Pixels with at least the probability ``threshold``, ``(n, H, W)``, bool.
    """
    limit = np.array(size[::-1])
    low = np.clip(np.floor(boxes[:, :2]) - 1, 0, limit).astype(np.int64)
    high = np.clip(np.ceil(boxes[:, 2:]) + 1, low, limit).astype(np.int64)
    out = np.zeros((len(masks), *size), bool)
    for image, mask, box, (left, top), (right, bottom) in zip(
            out, masks, boxes, low, high, strict=True):
        rows = compute_paste_weights(box[1], box[3], top, bottom, len(mask))
        columns = compute_paste_weights(box[0], box[2], left, right, mask.shape[1])
        image[top:bottom, left:right] = rows @ mask @ columns.T >= threshold
    return out


def compute_paste_weights(low: np.float32, high: np.float32, start: int, stop: int,
                          length: int) -> np.ndarray:
    """Return bilinear weights of pixels along one axis, ``(stop - start, length)``.

    The box is from ``low`` to ``high``, and ``length`` mask values are spread over it.
    """
    pixel = np.arange(start, stop, dtype=np.float32) + np.float32(0.5)
    with np.errstate(invalid='ignore', divide='ignore'):
        position = (pixel - low) / (high - low) * np.float32(length) - np.float32(0.5)
    position[np.isinf(position)] = (length - 1) / 2  # a box without width, as in mmdet
    return (1 - abs(position[:, None] - np.arange(length, dtype=np.float32))).clip(0)


def compute_mask_boxes(masks: np.ndarray) -> np.ndarray:
    """Return bounding boxes of masks ``(n, H, W)``, ``(n, 4)``; zeros for empty masks."""
    boxes = np.zeros((len(masks), 4), np.float32)
    for box, mask in zip(boxes, masks, strict=True):
        columns, rows = mask.any(0).nonzero()[0], mask.any(1).nonzero()[0]
        if len(columns):
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes
