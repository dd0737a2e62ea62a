"""RoI head of Cascade R-CNN with the scores of detectron2."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from mmdet.models.roi_heads import CascadeRoIHead
from mmdet.registry import MODELS
from mmdet.structures.bbox import bbox2roi
from torch import Tensor


@MODELS.register_module()
class MeanScoreCascadeRoIHead(CascadeRoIHead):
    """Cascade whose scores are the mean of the scores of its stages, as in detectron2.

    mmdet's cascade averages logits, which scores the same boxes differently.
    """

    def _refine_roi(self, x: tuple[Tensor, ...], rois: Tensor, batch_img_metas: list[dict],
                    num_proposals_per_img: Sequence[int], **kwargs: Any) -> tuple:
        """Return refined RoIs ``(n, 5)``, logits and box deltas of each image."""
        sizes, scores = list(num_proposals_per_img), []
        for stage, head in enumerate(self.bbox_head):
            outputs = self._bbox_forward(stage=stage, x=x, rois=rois, **kwargs)
            logits, deltas = outputs['cls_score'], outputs['bbox_pred'].split(sizes)
            activate = head.loss_cls.get_activation if head.custom_activation else partial(
                torch.softmax, dim=1)
            scores.append(activate(logits))
            if stage + 1 < self.num_stages:
                classes = scores[-1][:, :-1].argmax(1).split(sizes)
                images = zip(rois.split(sizes), classes, deltas, batch_img_metas, strict=True)
                rois = bbox2roi([head.regress_by_class(part[:, 1:], labels, changes, meta)
                                 for part, labels, changes, meta in images])  # yapf: disable
        mean = torch.stack(scores).mean(0)
        # predict_by_feat computes scores from logits
        logits = mean.logit() if head.custom_activation else mean.log()
        return rois.split(sizes), logits.split(sizes), deltas
