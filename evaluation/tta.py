"""Test-time augmentation: one result of several scales and flips of each image."""
from __future__ import annotations

from importlib import import_module

from mmengine.config import Config, ConfigDict

from colonnade.common.errors import UserError
from colonnade.settings.dataset_paths import find_datasets

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
    import_module(
        'colonnade.evaluation.instance_tta')  # registers the model; segmenters need no mmdet
    test_cfg = cfg.model.get('test_cfg') or {}
    test_cfg = test_cfg.get('rcnn', test_cfg)
    if 'nms' not in test_cfg:
        raise UserError('--tta merges what several views found by suppression, and model.test_cfg '
                        'has no nms: this detector cannot be tested so')
    cfg.model = ConfigDict(
        type='InstanceTTAModel',
        tta_cfg=dict(nms=test_cfg.nms, max_per_img=test_cfg.get('max_per_img', 100)),
        module=cfg.model)


def _augmented(pipeline: list[ConfigDict], ratios: tuple[float, ...],
               name: str) -> list[ConfigDict]:
    """The pipeline with every combination of size and flip from its ``Resize`` on."""
    at = [index for index, step in enumerate(pipeline) if step.type == 'Resize']
    if len(at) != 1 or 'scale' not in pipeline[at[0]] or len(pipeline) == at[0] + 1:
        raise UserError(
            f'--tta needs one Resize with a scale, and a step behind it, in the pipeline of {name}')
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
