"""What evaluators computed, as JSON has it."""
from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from torch import Tensor

Metrics = dict[str, Any]  # numbers, None for those that are undefined; rarely texts, dicts or lists
AVERAGES = ('mAP', 'mAP_50', 'mAP_75')
#: names of mmdet's and mmseg's metrics that are 0 for a model that finds nothing, or nothing right
FROM_ZERO = re.compile(
    r'(.*[/_])?(m?AP\w*|AR[\w@]*|PQ|[am]Acc|mIoU|mDice|mFscore|mPrecision|mRecall)')


def complete(metrics: dict[str, Any], evaluators: Iterable[BaseMetric]) -> Metrics:
    """``metrics`` as JSON has them, with an mAP of 0 where nothing was detected.

    mmdet's CocoMetric gives no numbers at all for a model without a single detection. Loops and
    evaluators may put names before a metric's own, as mmdet's TeacherStudentValLoop does.

    Args:
        metrics: What the evaluators computed.
        evaluators: Of the test.
    """
    absent: dict[str, float] = {}
    for evaluator in evaluators:
        if type(evaluator).__name__ not in ('CocoMetric', 'FasterCocoMetric'):
            continue
        prefix = f'{evaluator.prefix}/' if evaluator.prefix else ''
        if evaluator.format_only or any(f'/{prefix}' in f'/{key}' for key in metrics):
            continue
        names = [name for name in AVERAGES if name in (evaluator.metric_items or AVERAGES)]
        kinds = [kind for kind in evaluator.metrics if kind in ('bbox', 'segm')]
        absent |= {f'{prefix}{kind}_{name}': 0. for kind in kinds for name in names}
    metrics = {**absent, **metrics}
    return {key: plain(value) for key, value in metrics.items()}


def plain(value: Any) -> Any:
    """What an evaluator computed, as JSON has it: a number is a float, or None if not finite."""
    number = as_number(value)
    if number is not None:
        return float(number) if math.isfinite(number) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (Tensor, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None else str(value)


def is_lowest(name: str, value: Any) -> bool:
    """Return True if a metric of mmdet or mmseg has the lowest value that it can have."""
    number = as_number(value)
    return number is not None and number <= 0 and FROM_ZERO.fullmatch(name) is not None


def as_number(value: Any) -> int | float | None:
    """A number of Python, also from numpy and torch; None for what is none."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, int) else float(value)
