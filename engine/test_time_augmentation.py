"""Test-time augmentation: one result of several scales and flips of each image."""
from __future__ import annotations

from mmcv.ops import batched_nms
from mmdet.models import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS
from mmengine.structures import InstanceData

from .launch import find_datasets

RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # as in the field's multi-scale results


def augment_tests(cfg: Config, ratios: tuple[float, ...] = RATIOS) -> None:
    """Let ``cfg`` test each image at ``ratios`` times its test size, flipped and not.

    Segmenters average their probabilities, detectors suppress what several views found alike.

    Args:
        cfg: Changed in place.
        ratios: Factors of the size that the test pipeline resizes to.

    Raises:
        ValueError: If this cannot be done to the config.
    """
    for name, dataset in find_datasets(cfg, ('test_dataloader', )):
        dataset.pipeline = _augmented(dataset.pipeline, ratios, name)
    if cfg.default_scope == 'mmseg':
        cfg.model = ConfigDict(type='SegTTAModel', module=cfg.model)
        return
    test_cfg = cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg)
    cfg.model = ConfigDict(
        type='InstanceTTAModel',
        tta_cfg=dict(nms=test_cfg.nms, max_per_img=test_cfg.max_per_img),
        module=cfg.model)


def _augmented(pipeline: list[ConfigDict], ratios: tuple[float, ...],
               name: str) -> list[ConfigDict]:
    """The pipeline with every combination of size and flip from its ``Resize`` on."""
    at = [index for index, step in enumerate(pipeline) if step.type == 'Resize']
    if len(at) != 1 or 'scale' not in pipeline[at[0]]:
        raise ValueError(f'--tta needs one Resize with a scale in the pipeline of {name}')
    resize, behind = pipeline[at[0]], pipeline[at[0] + 1:]
    sizes = [
        ConfigDict(resize, scale=tuple(round(side * ratio) for side in resize.scale))
        for ratio in ratios
    ]
    flips = [ConfigDict(type='RandomFlip', prob=p, direction='horizontal') for p in (0., 1.)]
    if 'meta_keys' in behind[-1]:
        behind[-1] = ConfigDict(
            behind[-1], meta_keys=(*behind[-1].meta_keys, 'flip', 'flip_direction'))
    combined = ConfigDict(
        type='TestTimeAug', transforms=[sizes, flips, *([step] for step in behind)])
    return [*pipeline[:at[0]], combined]


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
