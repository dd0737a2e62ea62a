"""Private attributes of other packages that this room reads, each with its reason."""
from __future__ import annotations

from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric


def get_coco_api(metric: BaseMetric) -> Any:
    """Return the annotations of COCO's metric; None before it has computed its values.

    mmdet 3.5.1 keeps them as ``CocoMetric._coco_api``. Read again, they would take as much memory
    and time again, and a metric without ``ann_file`` has made them from samples.
    """
    return metric._coco_api


def is_subset(dataset: BaseDataset) -> bool:
    """Return True for a dataset that ``indices`` restricts.

    mmengine 0.10.12 keeps them as ``BaseDataset._indices``, and applies them in ``full_init``.
    """
    return dataset._indices is not None
