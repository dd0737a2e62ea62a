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
from torch import Tensor

from colonnade.datasets.rle import decode_rle, encode_masks


@MODELS.register_module()
class InstanceTTAModel(DetTTAModel):
    """mmdet's merging of boxes, for masks too: a box that stays keeps the mask of its view.

    Until then masks are run-length encoded, or those of all views would take gigabytes.
    """

    @torch.no_grad()
    def test_step(self, data: dict[str, list]) -> list[DetDataSample]:
        """What is found in images, each given in several views.

        Args:
            data: Inputs and samples, by view.
        """
        views = []
        for values in zip(*data.values(), strict=True):
            view = dict(zip(data, values, strict=True))
            flips = [sample.metainfo['flip'] for sample in view['data_samples']]
            for sample in view['data_samples']:  # mmdet's cascades turn masks back, but no boxes
                sample.set_metainfo(dict(flip=False))
            found = self.module.test_step(view)
            for sample, flip in zip(found, flips, strict=True):
                sample.set_metainfo(dict(flip=flip))
                sample.pred_instances = encoded(sample)
            views.append(found)
        return self.merge_preds(list(zip(*views, strict=True)))

    def _merge_single_sample(self, data_samples: list[DetDataSample]) -> DetDataSample:
        found = InstanceData.cat([sample.pred_instances for sample in data_samples])
        if len(found):
            _, kept = batched_nms(found.bboxes, found.scores, found.labels, self.tta_cfg['nms'])
            found = found[kept[:self.tta_cfg['max_per_img']]]
        if 'masks' in found:
            masks = decoded(found.masks, data_samples[0].ori_shape).to(found.bboxes.device)
            del found.masks
            found.masks = masks
        data_samples[0].pred_instances = found
        return data_samples[0]


def encoded(sample: DetDataSample) -> InstanceData:
    """What was found in one view, as it lies in the image, masks as COCO's RLE."""
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


def decoded(masks: list[dict], shape: tuple[int, int]) -> Tensor:
    """Masks ``(n, H, W)`` of an image of that shape from COCO's RLE."""
    decoded_masks = np.zeros((len(masks), *shape), bool)
    for mask, code in zip(decoded_masks, masks, strict=True):
        mask[:] = decode_rle(code)
    return torch.from_numpy(decoded_masks)
