"""Binary masks as COCO's run-length code."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from pycocotools import mask as coco_mask
from torch import Tensor


def encode_masks(masks: np.ndarray) -> list[dict]:
    """The same as mmdet's ``encode_mask_results``, in a third of its time.

    Args:
        masks: ``(n, H, W)``, bool.

    Returns:
        Of each mask its ``size`` and compressed ``counts``.
    """
    height, width = masks.shape[1:]
    covered = masks.any(1) if masks.size else np.zeros((len(masks), width), bool)
    codes = []
    for mask, columns in zip(masks, covered, strict=True):
        edges = edges_of(mask, columns)
        if not len(edges) or edges[-1] < mask.size:
            edges = np.append(edges, mask.size)
        counts = np.diff(edges, prepend=0).tolist()
        codes.append(coco_mask.frPyObjects(dict(size=[height, width], counts=counts), *mask.shape))
    return codes


def edges_of(mask: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Where a mask ``(H, W)`` changes, counted down its columns, from the code's 0 at the start on.

    Args:
        mask: Of which only the part around the object is read.
        columns: Which columns the object covers in part, ``(W,)``.
    """
    where, = columns.nonzero()
    if not len(where):
        return where
    left, right = where[0], where[-1] + 1
    rows, = mask[:, left:right].any(1).nonzero()
    top, bottom = rows[0], rows[-1] + 1
    if bottom < len(mask):
        bottom += 1  # a row without the object ends each column's last run
    else:
        top = 0
    pixels = np.zeros((right - left) * (bottom - top) + 2, bool)
    pixels[1:-1] = mask[top:bottom, left:right].T.ravel()
    column, row = np.divmod((pixels[1:] != pixels[:-1]).nonzero()[0], bottom - top)
    return (left + column) * len(mask) + top + row


def encode_for(metric: BaseMetric) -> None:
    """Let a metric of mmdet's for COCO get masks that are encoded, which it would do itself."""
    process: Callable[..., None] = metric.process

    def process_encoded(data_batch: Any, data_samples: Sequence[dict]) -> None:
        process(data_batch, [encoded(sample) for sample in data_samples])

    metric.process = process_encoded


def encoded(sample: dict) -> dict:
    """A sample, as evaluators give it to metrics, whose predicted masks are encoded."""
    found = sample.get('pred_instances', {})
    if not isinstance(found.get('masks'), Tensor):
        return sample
    masks = encode_masks(found['masks'].detach().cpu().numpy())
    return {**sample, 'pred_instances': {**found, 'masks': masks}}
