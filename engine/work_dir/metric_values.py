"""Metrics as JSON values."""
from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from torch import Tensor

Metrics = dict[str, Any]  # numbers; None for undefined ones; rarely strings, dicts or lists
AVERAGES = ('mAP', 'mAP_50', 'mAP_75')
#: metrics of mmdet and mmseg that are 0 for a model without correct predictions
FROM_ZERO = re.compile(
    r'(.*[/_])?(m?AP\w*|AR[\w@]*|PQ|[am]Acc|mIoU|mDice|mFscore|mPrecision|mRecall)')


def fill_missing_metrics(metrics: dict[str, Any], evaluators: Iterable[BaseMetric]) -> Metrics:
    """Return ``metrics`` as JSON values, with an mAP of 0 if nothing was detected.

    mmdet's CocoMetric gives no numbers for a model without detections. Loops and evaluators may add
    a prefix to the names of metrics, as mmdet's TeacherStudentValLoop does.
    """
    missing: dict[str, float] = {}
    for evaluator in evaluators:
        if type(evaluator).__name__ not in ('CocoMetric', 'FasterCocoMetric'):
            continue
        prefix = f'{evaluator.prefix}/' if evaluator.prefix else ''
        if evaluator.format_only or any(f'/{prefix}' in f'/{key}' for key in metrics):
            continue
        names = [name for name in AVERAGES if name in (evaluator.metric_items or AVERAGES)]
        tasks = [task for task in evaluator.metrics if task in ('bbox', 'segm')]
        missing |= {f'{prefix}{task}_{name}': 0. for task in tasks for name in names}
    return {key: to_json_value(value) for key, value in {**missing, **metrics}.items()}


def to_json_value(value: Any) -> Any:
    """Return a metric as a JSON value: numbers are floats, or None for NaN and Inf."""
    number = to_number(value)
    if number is not None:
        return float(number) if math.isfinite(number) else None
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (Tensor, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    return value if value is None else str(value)


def is_at_minimum(name: str, value: Any) -> bool:
    """Return True if a metric of mmdet or mmseg has its lowest possible value."""
    number = to_number(value)
    return number is not None and number <= 0 and FROM_ZERO.fullmatch(name) is not None


def to_number(value: Any) -> int | float | None:
    """Return a Python number for one of Python, numpy or torch, or None for anything else."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, int) else float(value)
