"""Test-time augmentation with several scales and flips of each image."""
from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from mmengine.config import Config, ConfigDict

from colonnade.common.errors import UserError
from colonnade.settings.dataset_paths import find_datasets

RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # common for multi-scale results


def augment_tests(cfg: Config) -> None:
    """Enable test-time augmentation in a config, in place.

    Each image is tested at several ratios of the size of the test pipeline, flipped and not. The
    ratios are ``img_ratios`` of the config, as in mmseg's configs, or six from 0.5 to 1.75.
    Segmenters average the probabilities of all views, and detectors merge detections by NMS.
    """
    ratios = cfg.get('img_ratios', RATIOS)
    if not isinstance(ratios, (list, tuple)) or not ratios or not all(
            isinstance(ratio, (int, float)) and ratio > 0 for ratio in ratios):
        raise UserError(f'img_ratios must be a list of positive numbers, got {ratios!r}')
    for name, dataset in find_datasets(cfg, ('test_dataloader', )):
        dataset.pipeline = _augment_pipeline(dataset.pipeline, ratios, name)
    if cfg.default_scope == 'mmseg':
        cfg.model = ConfigDict(type='SegTTAModel', module=cfg.model)
        return
    import_module('colonnade.evaluation.instance_tta')  # registers the model, and needs mmdet
    test_cfg = cfg.model.get('test_cfg') or {}
    test_cfg = test_cfg.get('rcnn', test_cfg)
    if 'nms' not in test_cfg:
        raise UserError('--tta merges detections by NMS, but model.test_cfg has no nms: test this '
                        'detector without --tta')
    if cfg.model.get('panoptic_fusion_head'):
        raise UserError('--tta merges detections by NMS, but model.panoptic_fusion_head predicts '
                        'panoptic segments: test this model without --tta')
    cfg.model = ConfigDict(
        type='InstanceTTAModel',
        tta_cfg=dict(nms=test_cfg.nms, max_per_img=test_cfg.get('max_per_img', 100)),
        module=cfg.model)


def _augment_pipeline(pipeline: list[ConfigDict], ratios: Sequence[float],
                      name: str) -> list[ConfigDict]:
    """Return the pipeline with every combination of size and flip after ``Resize``."""
    at = [index for index, step in enumerate(pipeline) if step.type == 'Resize']
    if len(at) != 1 or 'scale' not in pipeline[at[0]] or len(pipeline) == at[0] + 1:
        raise UserError(
            f'--tta needs one Resize step with a scale, and a step after it, in {name}.pipeline')
    resize, others = pipeline[at[0]], pipeline[at[0] + 1:]
    sizes = [
        ConfigDict(resize, scale=tuple(round(side * ratio) for side in resize.scale))
        for ratio in ratios
    ]
    flips = [ConfigDict(type='RandomFlip', prob=p, direction='horizontal') for p in (0., 1.)]
    if 'meta_keys' in others[-1]:
        others[-1] = ConfigDict(
            others[-1], meta_keys=(*others[-1].meta_keys, 'flip', 'flip_direction'))
    combined = ConfigDict(
        type='TestTimeAug', transforms=[sizes, flips, *([step] for step in others)])
    return [*pipeline[:at[0]], combined]
