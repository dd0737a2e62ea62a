"""Label maps that a segmenter predicted, counted against the ground truth.

``K`` is the number of classes; the rows of counts are the truth, their columns the prediction.
"""
from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

MAX_SIDE = 384  # pixels of the prediction that is kept to be drawn


@dataclass(frozen=True)
class PixelCounts:
    """The label map of an image, of a size that processes can exchange.

    Attributes:
        index: Index of the image in the dataset.
        cells: ``truth * K + prediction`` of the pairs that occur; truth ``K`` is of no class.
        counts: Number of pixels of each.
        shape: Height and width of ``packed``.
        packed: Some pixels of the prediction, compressed.
        num_classes: ``K``.
    """
    index: int
    cells: np.ndarray
    counts: np.ndarray
    shape: tuple[int, int]
    packed: bytes
    num_classes: int

    @classmethod
    def from_labels(cls, predicted: torch.Tensor, truth: torch.Tensor, index: int, num_classes: int,
                    ignored: int) -> PixelCounts:
        """Count and shrink a label map.

        Args:
            predicted: Prediction, ``(H, W)``.
            truth: Ground truth, ``(H, W)``, of the same device.
            index: Index of the image in the dataset.
            num_classes: ``K``.
            ignored: Label of pixels that do not count.
        """
        valid = truth != ignored
        rows = truth[valid].long().clamp(max=num_classes)
        counts = torch.bincount(rows * num_classes + predicted[valid].long()).cpu().numpy()
        cells = np.flatnonzero(counts)
        step = -(-max(predicted.shape) // MAX_SIDE)
        small = predicted[::step, ::step].cpu().numpy().astype(np.uint16)
        packed = zlib.compress(small.tobytes(), 1)
        return cls(index, cells, counts[cells], small.shape, packed, num_classes)

    @property
    def small(self) -> np.ndarray:
        """The prediction with fewer pixels, ``(h, w)``, uint16."""
        return np.frombuffer(zlib.decompress(self.packed), dtype=np.uint16).reshape(self.shape)

    @property
    def miou(self) -> float | None:
        """Mean IoU of the classes in the image; None if there are none."""
        counts = count_confusion([self])
        present = counts[:-1].sum(axis=1) > 0
        return float(compute_scores(counts)['iou'][present].mean()) if present.any() else None


def count_confusion(images: Sequence[PixelCounts]) -> np.ndarray:
    """Return the pixels of each class that were predicted as each class, ``(K + 1, K)``."""
    num_classes = images[0].num_classes
    total = np.zeros((num_classes + 1) * num_classes, dtype=np.int64)
    for image in images:
        total[image.cells] += image.counts
    return total.reshape(num_classes + 1, num_classes)


def compute_scores(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return IoU and accuracy of each class, as fractions; NaN for classes that do not occur."""
    right, truth, found = np.diag(counts), counts[:-1].sum(axis=1), counts.sum(axis=0)
    with np.errstate(invalid='ignore', divide='ignore'):
        return dict(iou=right / (truth + found - right), acc=right / truth)


def find_worst_maps(images: Sequence[PixelCounts], limit: int) -> list[tuple[PixelCounts, float]]:
    """Return the images of lowest mean IoU with it, below 1."""
    scored = [(each, miou) for each in images if (miou := each.miou) is not None and miou < 1]
    return sorted(scored, key=lambda pair: (pair[1], pair[0].index))[:limit]
