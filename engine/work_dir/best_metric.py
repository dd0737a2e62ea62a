"""The metric that the best checkpoint of a run is chosen by."""
from __future__ import annotations

import logging
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS, LOOPS, METRICS
from mmengine.runner import ValLoop

from colonnade.common.errors import UserError
from colonnade.settings.dataset_paths import iter_evaluators
from colonnade.settings.registries import find_class

COCO_METRICS = ('CocoMetric', 'FasterCocoMetric')
#: metrics of mmdet and mmseg with one main number, for which greater is better
MAIN_NUMBERS = dict(
    VOCMetric='mAP',
    OpenImagesMetric='mAP',
    CityScapesMetric='mAP',
    CrowdHumanMetric='mAP',
    CocoPanopticMetric='PQ',
    PanopticQuality='PQ')
IOU_NUMBERS = ('mIoU', 'mDice', 'mFscore')  # mmseg's IoUMetric


def is_validated(cfg: Config) -> bool:
    """Return True if a config evaluates during training."""
    return all(cfg.get(key) is not None for key in ('val_dataloader', 'val_evaluator', 'val_cfg'))


def find_best_metric(cfg: Config) -> str | None:
    """Return the main metric of a validation with its prefix, or None if it is not known.

    Panoptic quality goes before masks, and masks before boxes. Third-party loops and evaluators may
    give metrics other names.
    """
    loop, evaluator = cfg.get('val_cfg') or {}, cfg.get('val_evaluator')
    if find_class(loop.get('type', 'ValLoop'), LOOPS) is not ValLoop or \
            (isinstance(evaluator, dict) and 'metrics' in evaluator):
        return None
    names = list(filter(None, map(_find_main_metric, iter_evaluators(cfg, ('val_evaluator', )))))
    ordered = [name for part in ('PQ', 'segm_', '') for name in names if part in name]
    return ordered[0] if ordered else None


def _find_main_metric(evaluator: ConfigDict) -> str | None:
    metric_class = find_class(evaluator.get('type'), METRICS)
    class_name = metric_class.__name__ if metric_class is not None else ''
    if evaluator.get('format_only'):
        return None
    tasks = evaluator.get('metric')
    tasks = [tasks] if isinstance(tasks, str) else list(tasks or ['bbox'])
    name = None
    if class_name in COCO_METRICS and 'mAP' in (evaluator.get('metric_items') or ['mAP']):
        name = next((f'{each}_mAP' for each in ('segm', 'bbox') if each in tasks), None)
    elif class_name in ('LVISMetric', 'FasterLVISMetric'):
        if class_name == 'FasterLVISMetric' and not evaluator.get('metric'):
            tasks = ['bbox', 'segm']
        name = next((f'{each}_AP' for each in ('segm', 'bbox') if each in tasks), None)
    elif class_name == 'IoUMetric':
        numbers = evaluator.get('iou_metrics') or ['mIoU']
        name = next((each for each in IOU_NUMBERS if each in numbers), None)
    elif class_name in MAIN_NUMBERS and 'recall' not in tasks:
        name = MAIN_NUMBERS[class_name]
    if name is None:
        return None
    prefix = evaluator.get('prefix') or metric_class.default_prefix
    return f'{prefix}/{name}' if prefix else name


def get_checkpoint_settings(cfg: Config) -> dict[str, Any] | None:
    """Return the settings of a config's checkpoint hook, added if mmengine would add it.

    None if a config has none, or one that is built already.
    """
    if cfg.get('default_hooks') is None:
        cfg.default_hooks = ConfigDict()
    hook = cfg.default_hooks.setdefault('checkpoint', ConfigDict(type='CheckpointHook', interval=1))
    if not isinstance(hook, dict):
        return None
    hook_class = find_class(hook.get('type'), HOOKS)
    is_checkpoint_hook = isinstance(hook_class, type) and issubclass(hook_class, CheckpointHook)
    return hook if is_checkpoint_hook else None


def save_best_checkpoint(cfg: Config) -> None:
    """Make a config save its best checkpoint, unless it has ``save_best``."""
    hook = get_checkpoint_settings(cfg)
    if not is_validated(cfg) or hook is None or 'save_best' in hook:
        return
    name = find_best_metric(cfg)
    if name is not None:
        hook.update(save_best=name, rule='greater')
    else:
        print_log(
            'no best checkpoint will be saved, because the main metric of val_evaluator is '
            'unknown: pass --cfg-options default_hooks.checkpoint.save_best=NAME '
            'default_hooks.checkpoint.rule=greater',
            level=logging.WARNING)


def get_stopping_metric(cfg: Config, option: str = '--patience') -> tuple[str, str | None]:
    """Return the metric for early stopping, and whether ``'greater'`` or ``'less'`` is better.

    It is the metric of the best checkpoint. Errors name ``option``.
    """
    if not is_validated(cfg):
        raise UserError(f'{option} requires evaluation during training, but the config has no '
                        'val_dataloader, val_evaluator or val_cfg')
    hook = get_checkpoint_settings(cfg) or {}
    names, rules = hook.get('save_best'), hook.get('rule')
    name = names[0] if isinstance(names, (list, tuple)) else names
    rule = rules[0] if isinstance(rules, (list, tuple)) else rules
    if not name or name == 'auto':
        name, rule = find_best_metric(cfg), 'greater'
    if name is None:
        raise UserError(f'{option}: the main metric of val_evaluator is unknown: pass '
                        '--cfg-options default_hooks.checkpoint.save_best=NAME')
    return name, rule
