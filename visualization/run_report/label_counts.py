"""What a segmenter answered, counted against the truth.

``K`` is the number of classes; the rows of counts are the truth, their columns the prediction.
"""
from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

LONGEST = 384  # pixels of a side of what is kept to be drawn


@dataclass(frozen=True)
class Labelled:
    """The label map of an image, of a size that processes can exchange.

    Attributes:
        index: Of the image in the data set.
        cells: ``truth * K + prediction`` of the pairs that occur; truth ``K`` is of no class.
        counts: Pixels of each.
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

    @property
    def small(self) -> np.ndarray:
        """The prediction with fewer pixels, ``(h, w)``, uint16."""
        return np.frombuffer(zlib.decompress(self.packed), dtype=np.uint16).reshape(self.shape)

    @property
    def miou(self) -> float | None:
        """The mean IoU of the classes that are in the image; None if there are none."""
        iou = scores_of(confusion([self]))['iou']
        present = confusion([self])[:-1].sum(axis=1) > 0
        return float(iou[present].mean()) if present.any() else None


def labelled(predicted: torch.Tensor, truth: torch.Tensor, index: int, num_classes: int,
             ignored: int) -> Labelled:
    """Count and shrink a label map.

    Args:
        predicted, truth: ``(H, W)``, of one device.
        index: Of the image in the data set.
        num_classes: ``K``.
        ignored: The label of pixels that do not count.
    """
    valid = truth != ignored
    rows = truth[valid].long().clamp(max=num_classes)
    counts = torch.bincount(rows * num_classes + predicted[valid].long()).cpu().numpy()
    cells = np.flatnonzero(counts)
    step = -(-max(predicted.shape) // LONGEST)
    small = predicted[::step, ::step].cpu().numpy().astype(np.uint16)
    return Labelled(index, cells, counts[cells], small.shape, zlib.compress(small.tobytes(), 1),
                    num_classes)


def confusion(images: Sequence[Labelled]) -> np.ndarray:
    """Pixels of each class of the truth that were taken for each, ``(K + 1, K)``."""
    num_classes = images[0].num_classes
    total = np.zeros((num_classes + 1) * num_classes, dtype=np.int64)
    for each in images:
        total[each.cells] += each.counts
    return total.reshape(num_classes + 1, num_classes)


def scores_of(counts: np.ndarray) -> dict[str, np.ndarray]:
    """IoU and accuracy of each class, as fractions; NaN for classes that do not occur.

    Args:
        counts: See :func:`confusion`.
    """
    right, truth, found = np.diag(counts), counts[:-1].sum(axis=1), counts.sum(axis=0)
    with np.errstate(invalid='ignore', divide='ignore'):
        return dict(iou=right / (truth + found - right), acc=right / truth)


def worst(images: Sequence[Labelled], limit: int) -> list[tuple[Labelled, float]]:
    """The images of lowest mean IoU with it, below 1."""
    scored = [(each, miou) for each in images if (miou := each.miou) is not None and miou < 1]
    return sorted(scored, key=lambda pair: (pair[1], pair[0].index))[:limit]
