"""Metric of LVIS without its package, which does not run with NumPy 2."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmdet.evaluation import CocoMetric
from mmengine.fileio import get_local_path, load
from mmengine.logging import print_log
from mmengine.registry import METRICS

from colonnade.common.errors import UserError

try:
    import faster_coco_eval
except ImportError:
    faster_coco_eval = None

NAMES = dict(
    AP='AP_all', AP50='AP_50', AP75='AP_75', APs='AP_small', APm='AP_medium', APl='AP_large',
    APr='APr', APc='APc', APf='APf')  # yapf: disable


@METRICS.register_module()
class FasterLVISMetric(CocoMetric):
    """AP of LVIS (`arXiv 1908.03195 <https://arxiv.org/abs/1908.03195>`_, section 2).

    An image counts for the classes that it was labeled for: its objects and
    ``neg_category_ids``. Objects that are not found in ``not_exhaustive_category_ids`` are no
    errors. ``APr``, ``APc`` and ``APf`` are those of rare, common and frequent classes.

    Args:
        ann_file: LVIS annotation file.
        metric: ``'bbox'``, ``'segm'``, or both.
        max_detections: Number of detections of an image that count.
        **kwargs: Arguments of mmengine's ``BaseMetric``.

    Raises:
        UserError: If ``faster-coco-eval`` is not installed.
    """
    default_prefix = 'lvis'

    def __init__(self,
                 ann_file: str,
                 metric: str | Sequence[str] = ('bbox', 'segm'),
                 max_detections: int = 300,
                 **kwargs: Any) -> None:
        metrics = [metric] if isinstance(metric, str) else list(metric)
        super().__init__(metric=metrics, **kwargs)
        self.max_detections = max_detections
        if faster_coco_eval is None:
            raise UserError(
                'FasterLVISMetric needs the package faster-coco-eval: install it with pip')
        with get_local_path(ann_file, backend_args=self.backend_args) as path:
            self._coco_api = faster_coco_eval.COCO(str(path))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Return the metrics of all images."""
        truth = self._coco_api
        self.cat_ids = truth.getCatIds(catNms=self.dataset_meta['classes'])
        # the library cannot drop the others if an image has no object
        labeled = {key: set(image['neg_category_ids']) for key, image in truth.imgs.items()}
        for each in truth.anns.values():
            labeled[each['image_id']].add(each['category_id'])
        found: dict[str, float] = {}
        with TemporaryDirectory() as folder:
            files = self.results2json([each for _, each in results], str(Path(folder, 'results')))
            for kind in self.metrics:
                objects = [
                    each for each in load(files[kind])
                    if each['category_id'] in labeled[each['image_id']]
                ]
                if kind == 'segm':
                    for each in objects:
                        del each['bbox']  # otherwise, its area determines the size of the object
                found |= {
                    f'{kind}_{name}': value
                    for name, value in self._evaluate(truth, objects, kind).items()
                }
        return found

    def _evaluate(self, truth: Any, objects: list[dict], kind: str) -> dict[str, float]:
        """Return the metrics of boxes or masks."""
        if not objects:
            return dict.fromkeys(NAMES, 0.)
        evaluation = faster_coco_eval.COCOeval_faster(
            truth, truth.loadRes(objects), kind, lvis_style=True, print_function=lambda *_: None)
        evaluation.params.catIds = self.cat_ids
        evaluation.params.imgIds = truth.getImgIds()
        evaluation.params.maxDets = [self.max_detections]
        evaluation.run()
        stats = evaluation.stats_as_dict
        values = {name: round(float(stats[key]), 4) for name, key in NAMES.items()}
        print_log(f'{kind}: ' + ', '.join(f'{name} {each}' for name, each in values.items()),
                  'current')
        return values
