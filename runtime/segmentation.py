"""From a head's logits to a label map, by the steps of mmseg's inference.

Shapes: ``K`` classes, ``Q`` queries, ``h, w`` the head's map, ``H, W`` what the network takes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .description import Section
from .interpolation import across, down, line_of, resized
from .preprocessing import Prepared, Size

BLOCK = 2**20  # logits at a time, to stay in the processor's cache
Run = Callable[[np.ndarray], list[np.ndarray]]


@dataclass(frozen=True)
class Windows:
    """Images are segmented in windows that overlap: height and width of one, and of its steps."""
    size: Size
    stride: Size

    def places(self, size: Size) -> Iterator[tuple[slice, slice]]:
        """Where windows lie in an image of a size, row by row, as mmseg places them."""
        rows, columns = (list(spans(
            length, window,
            stride)) for length, window, stride in zip(size, self.size, self.stride, strict=True))
        return ((row, column) for row in rows for column in columns)


def spans(length: int, window: int, stride: int) -> Iterator[slice]:
    """Where windows lie along a side: the last one ends with it."""
    for index in range(max(length - window + stride - 1, 0) // stride + 1):
        end = min(index * stride + window, length)
        yield slice(max(end - window, 0), end)


@dataclass(frozen=True)
class Segmentation:
    """How logits become labels.

    Attributes:
        kind: Of outputs: ``'logits'``, ``(1, K, h, w)``; or ``'queries'``: scores of classes,
            ``(1, Q, K + 1)``, and logits of masks, ``(1, Q, h, w)``.
        num_classes: Of the labels.
        align_corners: How logits are resized.
        threshold: Of the probability of a head with one channel: label 1 lies above it.
        windows: None if images are segmented at once.
    """
    kind: str
    num_classes: int
    align_corners: bool
    threshold: float | None
    windows: Windows | None

    def __call__(self, prepared: Prepared, run: Run) -> np.ndarray:
        """Labels of the image as it was given, ``(H, W)``.

        Args:
            prepared: The image.
            run: The network: from ``(1, 3, H, W)`` of any size to its outputs.
        """
        logits = self._over_windows(prepared, run) if self.windows else self._at_once(
            prepared.array, run)
        rows, columns = (
            line_of(logits.shape[i], prepared.padded[i], prepared.resized[i], prepared.size[i],
                    self.align_corners) for i in range(2))
        return self._labels(across(logits, columns), rows, prepared.size)

    def _at_once(self, array: np.ndarray, run: Run) -> np.ndarray:
        """Logits ``(h, w, K)`` of an image or a window; those of queries have its size."""
        outputs = [output[0] for output in run(array[None])]
        if self.kind == 'logits':
            return outputs[0].transpose(1, 2, 0)
        scores, masks = outputs
        masks = resized(masks.transpose(1, 2, 0), array.shape[1:])
        return sigmoid(masks) @ softmax(scores)[:, :-1]

    def _over_windows(self, prepared: Prepared, run: Run) -> np.ndarray:
        """The mean of the logits of all windows at each pixel, ``(H, W, K)``."""
        assert self.windows is not None  # where this is called
        total, count = None, np.zeros((*prepared.padded, 1), dtype=np.float32)
        for place in self.windows.places(prepared.padded):
            window = prepared.array[:, place[0], place[1]]
            logits = resized(self._at_once(window, run), window.shape[1:], self.align_corners)
            if total is None:
                total = np.zeros((*prepared.padded, logits.shape[2]), dtype=np.float32)
            total[place] += logits
            count[place] += 1
        return total / count

    def _labels(self, wide: np.ndarray, rows: np.ndarray | None, size: Size) -> np.ndarray:
        """The label of each pixel, from logits ``(h, W, K)``."""
        labels = np.empty(size, dtype=np.uint8 if self.num_classes <= 256 else np.uint16)
        step = max(BLOCK // (size[1] * wide.shape[2]), 1)
        for start in range(0, size[0], step):
            part = slice(start, start + step)
            logits = down(wide, rows, part)
            if self.threshold is None:
                labels[part] = logits.argmax(2)
            else:
                labels[part] = sigmoid(logits[..., 0]) > np.float32(self.threshold)
        return labels


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Without overflow, as exp sees no positive values."""
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1, small) / (1 + small)


def softmax(values: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def read_segmentation(about: Section, num_classes: int) -> Segmentation:
    """What ``model.json`` says of making labels.

    Raises:
        ModelError: If something is missing or impossible.
    """
    found = about.below('windows')
    return Segmentation(
        kind=about.choice('kind', 'logits', 'queries'),
        num_classes=num_classes,
        align_corners=about.get('align_corners', bool, 'true or false', False),
        threshold=about.get('threshold', float, 'a number', None),
        windows=Windows(found.size('size'), found.size('stride')) if found else None)
