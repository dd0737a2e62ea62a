"""Label maps from the logits of a head, by the steps of mmseg.

Shapes: ``K`` classes, ``Q`` queries, ``h, w`` the head's map, ``H, W`` the network's input.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .metadata import Section
from .preprocessing import PreparedImage, Size
from .resizing import build_crop_matrix, resize_columns, resize_maps, resize_rows

BLOCK = 2**20  # logits at a time, which fit into the processor's cache
Run = Callable[[np.ndarray], list[np.ndarray]]


@dataclass(frozen=True)
class Windows:
    """Height and width of overlapping windows and of their stride."""
    size: Size
    stride: Size

    def iter_places(self, size: Size) -> Iterator[tuple[slice, slice]]:
        """Yield the windows in an image, row by row, as mmseg places them."""
        spans = []
        for length, window, stride in zip(size, self.size, self.stride, strict=True):
            num_windows = max(length - window + stride - 1, 0) // stride + 1
            ends = [min(index * stride + window, length) for index in range(num_windows)]
            spans.append([slice(max(end - window, 0), end) for end in ends])
        return ((row, column) for row in spans[0] for column in spans[1])


@dataclass(frozen=True)
class Segmentation:
    """Computation of labels from logits."""
    kind: str  # 'logits', (1, K, h, w); or 'queries': (1, Q, K + 1) and (1, Q, h, w)
    num_classes: int
    align_corners: bool
    threshold: float | None  # probability above which a head with one channel predicts label 1
    windows: Windows | None  # None if images are segmented at once
    mask_stride: float | None = None  # stride of the masks of queries in whole patches

    def __call__(self, image: PreparedImage, run: Run) -> np.ndarray:
        """Return the labels of the original image, ``(H, W)``.

        Args:
            image: Prepared image.
            run: Function from ``(1, 3, H, W)`` of any size to the outputs of the network.
        """
        if self.windows:
            logits = self._compute_mean_logits(image, run, self.windows)
        else:
            logits = self._compute_logits(image.array, run)
        rows, columns = (
            build_crop_matrix(logits.shape[i], image.padded[i], image.resized[i], image.size[i],
                              self.align_corners) for i in range(2))
        return self._compute_labels(resize_columns(logits, columns), rows, image.size)

    def _compute_logits(self, array: np.ndarray, run: Run) -> np.ndarray:
        """Return logits ``(h, w, K)`` of an image or window; from queries, ``(H, W, K)``."""
        outputs = [output[0] for output in run(array[None])]
        if self.kind == 'logits':
            return outputs[0].transpose(1, 2, 0)
        scores, masks = outputs
        masks = resize_maps(masks.transpose(1, 2, 0), array.shape[1:], stride=self.mask_stride)
        return sigmoid(masks) @ softmax(scores)[:, :-1]

    def _compute_mean_logits(self, image: PreparedImage, run: Run, windows: Windows) -> np.ndarray:
        """Return the mean logits of all windows at each pixel, ``(H, W, K)``."""
        total, count = None, np.zeros((*image.padded, 1), dtype=np.float32)
        for place in windows.iter_places(image.padded):
            window = image.array[:, place[0], place[1]]
            logits = self._compute_logits(window, run)
            logits = resize_maps(logits, window.shape[1:], self.align_corners)
            if total is None:
                total = np.zeros((*image.padded, logits.shape[2]), dtype=np.float32)
            total[place] += logits
            count[place] += 1
        return total / count

    def _compute_labels(self, logits: np.ndarray, rows: np.ndarray | None,
                        size: Size) -> np.ndarray:
        """Return labels ``(H, W)``, from logits ``(h, W, K)`` and the matrix of rows."""
        labels = np.empty(size, dtype=np.uint8 if self.num_classes <= 256 else np.uint16)
        step = max(BLOCK // (size[1] * logits.shape[2]), 1)
        for start in range(0, size[0], step):
            part = slice(start, start + step)
            values = resize_rows(logits, rows, part)
            if self.threshold is None:
                labels[part] = values.argmax(2)
            else:
                labels[part] = sigmoid(values[..., 0]) > np.float32(self.threshold)
        return labels


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Compute the sigmoid without overflow, because exp gets no positive values."""
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1, small) / (1 + small)


def softmax(values: np.ndarray) -> np.ndarray:
    """Compute the softmax over the last axis."""
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def read_segmentation(section: Section, num_classes: int) -> Segmentation:
    """Read the computation of labels from ``model.json``."""
    windows = section.get_section('windows')
    return Segmentation(
        kind=section.get_choice('kind', 'logits', 'queries'),
        num_classes=num_classes,
        align_corners=section.get_bool('align_corners', False),
        threshold=section.get_float('threshold', None),
        windows=Windows(windows.get_size('size'), windows.get_size('stride')) if windows else None,
        mask_stride=section.get_float('mask_stride', None))
