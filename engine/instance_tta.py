"""Test-time augmentation of detectors with masks."""
from __future__ import annotations

from mmcv.ops import batched_nms
from mmdet.models import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.registry import MODELS
from mmengine.structures import InstanceData


@MODELS.register_module()
class InstanceTTAModel(DetTTAModel):
    """mmdet's merging of boxes, for masks too: a box that stays keeps the mask of its view."""

    def _merge_single_sample(self, data_samples: list[DetDataSample]) -> DetDataSample:
        found = InstanceData.cat([_unflipped(sample) for sample in data_samples])
        if len(found):
            _, kept = batched_nms(found.bboxes, found.scores, found.labels, self.tta_cfg['nms'])
            found = found[kept[:self.tta_cfg['max_per_img']]]
        data_samples[0].pred_instances = found
        return data_samples[0]


def _unflipped(sample: DetDataSample) -> InstanceData:
    """What was found in one view, as it lies in the image."""
    found = sample.pred_instances
    if sample.metainfo['flip']:
        found.bboxes = bbox_flip(found.bboxes, sample.ori_shape, sample.flip_direction)
        if 'masks' in found:
            found.masks = found.masks.flip(-1)
    return found
