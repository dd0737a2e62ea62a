"""Private attributes of other packages that these modules read, with reasons."""
from __future__ import annotations

from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric


def get_coco_api(metric: BaseMetric) -> Any:
    """Return the annotations of COCO's metric, or None before it has computed its values.

    Reading them again would double memory and time, and a metric without ``ann_file`` has built
    them from samples (mmdet 3.5.1).
    """
    return metric._coco_api


def is_subset(dataset: BaseDataset) -> bool:
    """Return True if ``indices`` restricts a dataset, which ``full_init`` does (mmengine 0.10.12).
    """
    return dataset._indices is not None
