"""Predicted masks, encoded before mmdet's metrics for COCO get them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmengine.evaluator import BaseMetric
from torch import Tensor

from .rle import encode_masks


def encode_for(metric: BaseMetric) -> None:
    """Let a metric of mmdet's for COCO get masks that are encoded, which it would do itself."""
    process: Callable[..., None] = metric.process

    def process_encoded(data_batch: Any, data_samples: Sequence[dict]) -> None:
        process(data_batch, [encode_sample(sample) for sample in data_samples])

    metric.process = process_encoded


def encode_sample(sample: dict) -> dict:
    """A sample, as evaluators give it to metrics, whose predicted masks are encoded."""
    found = sample.get('pred_instances', {})
    if not isinstance(found.get('masks'), Tensor):
        return sample
    masks = encode_masks(found['masks'].detach().cpu().numpy())
    return {**sample, 'pred_instances': {**found, 'masks': masks}}
