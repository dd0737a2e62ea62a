"""Training length and learning rate for other dataset and batch sizes."""
from __future__ import annotations

from typing import Any

from mmengine.config import Config

from colonnade.common.errors import UserError
from colonnade.engine.optim.batch_size import (APPLIED, SCHEDULER_COUNTS, get_base_batch_size,
                                               scale_final_rates)

RECIPE_IMAGES = {'CocoDataset': 117266, 'ADE20KDataset': 20210}  # images with objects
HOOK_COUNTS = ('switch_epoch', 'switch_iter')  # start of the last epochs' pipeline
MIN_STEPS = 1000  # steps of the recipe's batch size, unless the recipe itself has fewer
MIN_EVALUATIONS = 5  # if the validation set is small


def scale_schedule(cfg: Config,
                   num_images: int,
                   *,
                   num_val: int = 0,
                   images_per_gpu: int | None = None,
                   num_gpus: int = 1,
                   epochs: int | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return settings for as many epochs as in the recipe, and a learning rate for the batch size.

    A small dataset is trained for more epochs, until ``MIN_STEPS`` steps of the recipe's batch
    size. The learning rate is proportional to the batch size (arXiv 1706.02677).

    A recipe with more images per process than its ``auto_scale_lr.base_batch_size`` has inherited
    that value. Then its learning rate is known per process only, and its length is not changed.

    Args:
        cfg: Config of the recipe.
        num_images: Number of training images.
        num_val: Number of validation images; 0 if unknown.
        images_per_gpu: Images per process. Defaults to that of the recipe.
        num_gpus: Number of processes.
        epochs: Number of epochs. Defaults to the length above.

    Returns:
        The settings, and sentences that explain them.

    Raises:
        ValueError: If the recipe has no length, or its iterations include gradient accumulation.
    """
    if (accumulated := cfg.get(APPLIED, {}).get('accumulate', 1)) > 1:
        raise UserError(
            f'the config was written by a run with --grad-accum {accumulated}, which scaled its '
            'iteration counts: use the config that the run was started with')
    stated, own = get_base_batch_size(cfg), cfg.train_dataloader.batch_size
    is_own_base = stated >= own
    base, min_steps = (stated, MIN_STEPS) if is_own_base else (own * num_gpus, 1)
    batch = (images_per_gpu or own) * num_gpus
    loop, checkpoint = cfg.train_cfg, cfg.default_hooks.checkpoint
    schedulers = cfg.param_scheduler
    schedulers = schedulers if isinstance(schedulers, list) else [schedulers]
    if old := loop.get('max_epochs'):
        new = epochs or max(old, -(-min_steps * base // num_images))
        key, unit, iterations = 'max_epochs', 'epochs', new * -(-num_images // batch)
    elif old := loop.get('max_iters'):
        samples = epochs * num_images if epochs else _count_samples(cfg, num_images, base,
                                                                    min_steps)
        key, unit, new = 'max_iters', 'iterations', -(-samples // batch)
        iterations = new
    else:
        raise UserError('train_cfg has neither max_epochs nor max_iters')
    rate, factor = cfg.optim_wrapper.optimizer.lr, new / old
    train_cfg: dict[str, Any] = {key: new, **_scale_counts(loop, ('val_interval', ), factor)}
    if loop.get('dynamic_intervals'):
        train_cfg['dynamic_intervals'] = [(max(1, round(begin * factor)), interval)
                                          for begin, interval in loop.dynamic_intervals]
    if num_val and 'val_interval' in train_cfg:
        samples = num_images if key == 'max_epochs' else batch  # per epoch or iteration
        # Evaluation should not process more images than training.
        interval = max(-(-new // MIN_EVALUATIONS), -(-num_val // samples))
        train_cfg['val_interval'] = min(train_cfg['val_interval'], interval)
    changes: dict[str, Any] = dict(
        train_cfg=train_cfg,
        param_scheduler=[_scale_scheduler(each, factor, iterations) for each in schedulers],
        optim_wrapper=dict(optimizer=dict(lr=rate * batch / base)),
        default_hooks=dict(checkpoint=_scale_counts(checkpoint, ('interval', ), factor)))
    scale_final_rates(changes['param_scheduler'], batch / base)
    reasons = [
        f'{new} {unit} for {num_images} images, {batch} per step (recipe: {old}, {base} per '
        f'step); learning rate {rate:g} x {batch} / {base} = {rate * batch / base:g}'
    ]
    if is_own_base:
        changes['auto_scale_lr'] = dict(base_batch_size=batch)
    else:
        reasons.append(f'auto_scale_lr.base_batch_size is {stated}, less than the {own} images per '
                       'process of the recipe, so its learning rate is for another batch size: it '
                       'changes only with --batch-size, and the length only with --epochs. Check '
                       'optim_wrapper.optimizer.lr')
    hooks = [hook for hook in cfg.get('custom_hooks') or [] if hook]
    if factor != 1 and any(key in hook for hook in hooks for key in HOOK_COUNTS):
        changes['custom_hooks'] = [  # all hooks, since the list of the base config is replaced
            dict(hook, **_scale_counts(hook, HOOK_COUNTS, factor)) for hook in hooks
        ]
    return changes, reasons


def _count_samples(cfg: Config, num_images: int, base: int, min_steps: int) -> int:
    """Return the number of samples of as many epochs as a recipe in iterations has."""
    dataset, old = cfg.train_dataloader.dataset, cfg.train_cfg.max_iters
    is_own = 'metainfo' in dataset  # not the dataset of the recipe
    recipe_images = num_images if is_own else RECIPE_IMAGES.get(dataset.get('type'), num_images)
    return max(old * base * num_images // recipe_images, min(min_steps, old) * base)


def _scale_scheduler(scheduler: dict[str, Any], factor: float, iterations: int) -> dict[str, Any]:
    """Return a scaled scheduler; a warm-up is only shortened, to a tenth of a short training."""
    if scheduler.get('type') == 'LinearLR' and 'end' in scheduler:
        # The last warm-up step already has the full learning rate, so one step would be none.
        return dict(scheduler, end=max(2, min(scheduler['end'], iterations // 10)))
    scaled = dict(scheduler, **_scale_counts(scheduler, SCHEDULER_COUNTS, factor))
    if scaled.get('begin') and scaled['begin'] >= scaled.get('end', float('inf')):
        scaled['begin'] = scaled['end'] - 1
    return scaled


def _scale_counts(settings: dict[str, Any], keys: tuple[str, ...], factor: float) -> dict[str, Any]:
    """Return scaled numbers of epochs or iterations, except those that are unset or 0."""
    changed: dict[str, Any] = {}
    for key in keys:
        value = settings.get(key)
        if isinstance(value, list):
            changed[key] = [max(1, round(count * factor)) for count in value]
        elif value and value > 0:
            changed[key] = max(1, round(value * factor))
    return changed
