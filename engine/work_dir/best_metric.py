"""Which of a run's metrics tells its best checkpoint."""
from __future__ import annotations

import logging
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS, LOOPS, METRICS
from mmengine.runner import ValLoop

from colonnade.common.errors import UserError
from colonnade.settings.dataset_paths import evaluators
from colonnade.settings.registries import find_class

COCO_METRICS = ('CocoMetric', 'FasterCocoMetric')
#: metrics of mmdet and mmseg of which one number says how good a model is, greater being better
SINGLE_NUMBERS = dict(
    VOCMetric='mAP',
    OpenImagesMetric='mAP',
    CityScapesMetric='mAP',
    CrowdHumanMetric='mAP',
    CocoPanopticMetric='PQ')
OF_PIXELS = ('mIoU', 'mDice', 'mFscore')  # of mmseg's IoUMetric


def is_validated(cfg: Config) -> bool:
    """Whether a config evaluates while it trains."""
    return all(cfg.get(key) is not None for key in ('val_dataloader', 'val_evaluator', 'val_cfg'))


def best_metric(cfg: Config) -> str | None:
    """The metric that matters most in validation, with its evaluator's prefix.

    Panoptic quality counts before masks, and masks before boxes. None if no evaluator is known to
    have one, or if a loop or an evaluator of its own kind may give metrics other names.
    """
    loop, evaluator = cfg.get('val_cfg') or {}, cfg.get('val_evaluator')
    if find_class(loop.get('type', 'ValLoop'), LOOPS) is not ValLoop or \
            (isinstance(evaluator, dict) and 'metrics' in evaluator):
        return None
    found = [name for name in map(metric_of, evaluators(cfg, ('val_evaluator', ))) if name]
    ordered = [name for part in ('PQ', 'segm_', '') for name in found if part in name]
    return ordered[0] if ordered else None


def metric_of(evaluator: ConfigDict) -> str | None:
    """The metric of one evaluator that matters most."""
    cls = find_class(evaluator.get('type'), METRICS)
    kind = getattr(cls, '__name__', '')
    if evaluator.get('format_only'):
        return None
    wanted = evaluator.get('metric')
    wanted = [wanted] if isinstance(wanted, str) else list(wanted or ['bbox'])
    name = None
    if kind in COCO_METRICS and 'mAP' in (evaluator.get('metric_items') or ['mAP']):
        name = next((f'{each}_mAP' for each in ('segm', 'bbox') if each in wanted), None)
    elif kind == 'LVISMetric':
        name = next((f'{each}_AP' for each in ('segm', 'bbox') if each in wanted), None)
    elif kind == 'IoUMetric':
        given = evaluator.get('iou_metrics') or ['mIoU']
        name = next((each for each in OF_PIXELS if each in given), None)
    elif kind in SINGLE_NUMBERS and 'recall' not in wanted:
        name = SINGLE_NUMBERS[kind]
    prefix = evaluator.get('prefix') or getattr(cls, 'default_prefix', None)
    return f'{prefix}/{name}' if name and prefix else name


def checkpoint_hook(cfg: Config) -> dict[str, Any] | None:
    """The settings of a config's hook that saves checkpoints, added if mmengine would add it.

    None if a config has none, or one that is built already.
    """
    if cfg.get('default_hooks') is None:
        cfg.default_hooks = ConfigDict()
    hook = cfg.default_hooks.setdefault('checkpoint', ConfigDict(type='CheckpointHook', interval=1))
    if not isinstance(hook, dict):
        return None
    cls = find_class(hook.get('type'), HOOKS)
    return hook if isinstance(cls, type) and issubclass(cls, CheckpointHook) else None


def keep_best(cfg: Config) -> None:
    """Let a config save its best checkpoint, unless it says itself what is saved.

    A warning says that the metric that matters is not known.

    Args:
        cfg: Changed in place, where it evaluates and that metric is known.
    """
    hook = checkpoint_hook(cfg)
    if not is_validated(cfg) or hook is None or 'save_best' in hook:
        return
    name = best_metric(cfg)
    if name is not None:
        hook.update(save_best=name, rule='greater')
    else:
        print_log(
            'no best checkpoint will be saved: it is not known which metric of val_evaluator '
            'matters, name it with --cfg-options default_hooks.checkpoint.save_best=NAME '
            'default_hooks.checkpoint.rule=greater',
            level=logging.WARNING)


def watched_metric(cfg: Config) -> tuple[str, str | None]:
    """The metric that tells when to stop, and whether ``'greater'`` or ``'less'`` is better.

    It is the one that the best checkpoint is chosen by.

    Raises:
        ValueError: If there is none.
    """
    if not is_validated(cfg):
        raise UserError('--patience needs an evaluation during training, and the config has no '
                        'val_dataloader, val_evaluator or val_cfg')
    hook = checkpoint_hook(cfg) or {}
    names, rules = hook.get('save_best'), hook.get('rule')
    name = names[0] if isinstance(names, (list, tuple)) else names
    rule = rules[0] if isinstance(rules, (list, tuple)) else rules
    if not name or name == 'auto':
        name, rule = best_metric(cfg), 'greater'
    if name is None:
        raise UserError('--patience: it is not known which metric of val_evaluator matters, say '
                        '--cfg-options default_hooks.checkpoint.save_best=NAME')
    return name, rule


def settle_auto(cfg: Config) -> None:
    """Let the best checkpoint be chosen by the metric that tells when to stop, if by ``'auto'``.

    mmengine would take the first metric that an evaluation gives.

    Args:
        cfg: Changed in place.

    Raises:
        ValueError: As :func:`watched_metric`.
    """
    name, rule = watched_metric(cfg)
    hook = checkpoint_hook(cfg)
    if hook is not None and hook.get('save_best') in ('auto', ['auto']):
        hook.update(save_best=name, rule=rule)
