"""Test-time augmentation of detectors with masks."""
from __future__ import annotations

import numpy as np
import torch
from mmcv.ops import batched_nms
from mmdet.models import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.registry import MODELS
from mmengine.structures import InstanceData

from colonnade.datasets.rle import decode_rle, encode_masks


@MODELS.register_module()
class InstanceTTAModel(DetTTAModel):
    """mmdet's merging of boxes, extended to masks: a box that is kept keeps the mask of its view.

    Masks are run-length encoded meanwhile, because those of all views would take gigabytes.
    """

    @torch.no_grad()
    def test_step(self, data: dict[str, list]) -> list[DetDataSample]:
        """Return the merged detections in several views of images."""
        views = []
        for values in zip(*data.values(), strict=True):
            view = dict(zip(data, values, strict=True))
            flips = [sample.metainfo['flip'] for sample in view['data_samples']]
            # Without this, mmdet's cascades would flip back masks but not boxes.
            for sample in view['data_samples']:
                sample.set_metainfo(dict(flip=False))
            predictions = self.module.test_step(view)
            for sample, flip in zip(predictions, flips, strict=True):
                sample.set_metainfo(dict(flip=flip))
                sample.pred_instances = restore_view(sample)
            views.append(predictions)
        return self.merge_preds(list(zip(*views, strict=True)))

    def _merge_single_sample(self, data_samples: list[DetDataSample]) -> DetDataSample:
        found = InstanceData.cat([sample.pred_instances for sample in data_samples])
        if len(found):
            _, kept = batched_nms(found.bboxes, found.scores, found.labels, self.tta_cfg['nms'])
            found = found[kept[:self.tta_cfg['max_per_img']]]
        if 'masks' in found:
            masks = np.zeros((len(found), *data_samples[0].ori_shape), bool)
            for mask, code in zip(masks, found.masks, strict=True):
                mask[:] = decode_rle(code)
            del found.masks
            found.masks = torch.from_numpy(masks).to(found.bboxes.device)
        data_samples[0].pred_instances = found
        return data_samples[0]


def restore_view(sample: DetDataSample) -> InstanceData:
    """Return the detections in a view, flipped back, with masks as RLEs."""
    found = sample.pred_instances
    flipped = sample.metainfo['flip']
    if flipped:
        found.bboxes = bbox_flip(found.bboxes, sample.ori_shape, sample.flip_direction)
    if 'masks' in found:
        masks = found.masks.flip(-1) if flipped else found.masks
        encodings = encode_masks(masks.cpu().numpy())
        del found.masks
        found.masks = encodings
    return found
