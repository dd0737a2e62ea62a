"""A recipe's schedule and learning rate for data sets and batches of other sizes."""
from __future__ import annotations

from typing import Any

from mmengine.config import Config

from colonnade.common.errors import UserError
from colonnade.engine.optim.batch_size import (APPLIED, SCHEDULER_COUNTS, get_base_batch_size,
                                               scale_final_rates)

RECIPE_IMAGES = {'CocoDataset': 117266, 'ADE20KDataset': 20210}  # with objects
COUNTS_OF_HOOKS = ('switch_epoch', 'switch_iter')  # when the pipeline of the last epochs begins
LEAST_STEPS = 1000  # of the recipe's batch size, or as many as the recipe has
EVALUATIONS = 5  # of a training at least, if the validation set is small


def schedule(cfg: Config,
             num_images: int,
             *,
             num_val: int = 0,
             images_per_gpu: int | None = None,
             num_gpus: int = 1,
             epochs: int | None = None) -> tuple[dict[str, Any], list[str]]:
    """As many passes over the data as the recipe makes over its own, and a rate for the batch.

    A small data set is passed more often, for ``LEAST_STEPS`` steps of the recipe's batch. The
    learning rate is proportional to the batch (arXiv 1706.02677).

    A recipe that takes more images in one process than its ``auto_scale_lr.base_batch_size`` has
    inherited that. The batch of its rate is then known per process only, and its length is kept.

    Args:
        cfg: The recipe.
        num_images: Images to train with.
        num_val: Images to evaluate on; 0 if that is not known.
        images_per_gpu: ``None`` is the recipe's.
        num_gpus: How many GPUs, or processes, will train.
        epochs: Passes over the data; ``None`` chooses as above.

    Returns:
        What the config must set, and sentences that explain it.

    Raises:
        ValueError: If the recipe does not say which batch its rate is for, or how long it trains.
    """
    if (accumulated := cfg.get(APPLIED, {}).get('accumulate', 1)) > 1:
        raise UserError(
            f'the config was written by a run with --grad-accum {accumulated}, which is '
            'in its iterations: use the config that this run was started with')
    stated, own = get_base_batch_size(cfg), cfg.train_dataloader.batch_size
    is_own_base = stated >= own
    base = stated if is_own_base else own * num_gpus
    least_steps = LEAST_STEPS if is_own_base else 1
    batch = (images_per_gpu or own) * num_gpus
    loop, checkpoint = cfg.train_cfg, cfg.default_hooks.checkpoint
    schedulers = cfg.param_scheduler
    schedulers = schedulers if isinstance(schedulers, list) else [schedulers]
    if not loop.get('max_epochs') and not loop.get('max_iters'):
        raise UserError('train_cfg of the config has neither max_epochs nor max_iters')
    if loop.get('max_epochs'):
        old = loop.max_epochs
        new = epochs or max(old, -(-least_steps * base // num_images))
        key, unit, iterations = 'max_epochs', 'epochs', new * -(-num_images // batch)
    else:
        old = loop.max_iters
        dataset = cfg.train_dataloader.dataset
        is_own = 'metainfo' in dataset  # not what the recipe was made for
        recipe_images = num_images if is_own else RECIPE_IMAGES.get(dataset.get('type'), num_images)
        seen = max(old * base * num_images // recipe_images, min(least_steps, old) * base)
        new = iterations = -(-(epochs * num_images if epochs else seen) // batch)
        key, unit = 'max_iters', 'iterations'
    rate, factor = cfg.optim_wrapper.optimizer.lr, new / old
    changes: dict[str, Any] = dict(
        train_cfg={
            key: new,
            **_stretched_counts(loop, ('val_interval', ), factor),
            **_stretched_intervals(loop, factor)
        },
        param_scheduler=[
            _stretched_scheduler(scheduler, factor, iterations) for scheduler in schedulers
        ],
        optim_wrapper=dict(optimizer=dict(lr=rate * batch / base)),
        default_hooks=dict(checkpoint=_stretched_counts(checkpoint, ('interval', ), factor)))
    scale_final_rates(changes['param_scheduler'], batch / base)
    reasons = [
        f'{new} {unit} for {num_images} images, {batch} a step (the recipe has {old}, {base} a '
        f'step); learning rate {rate:g} x {batch} / {base} = {rate * batch / base:g}'
    ]
    if is_own_base:
        changes['auto_scale_lr'] = dict(base_batch_size=batch)
    else:
        reasons.append(f'auto_scale_lr.base_batch_size is {stated}, less than the {own} images of '
                       'one process of the recipe, so its learning rate is for another batch: it '
                       'changes only with --batch-size, and the length only with --epochs. Check '
                       'optim_wrapper.optimizer.lr')
    hooks = [hook for hook in cfg.get('custom_hooks') or [] if hook]
    if num_val and 'val_interval' in changes['train_cfg']:
        seen = num_images if key == 'max_epochs' else batch  # in one of what the loop counts
        # no more images are evaluated than trained with
        often = max(-(-new // EVALUATIONS), -(-num_val // seen))
        changes['train_cfg']['val_interval'] = min(changes['train_cfg']['val_interval'], often)
    if factor != 1 and any(key in hook for hook in hooks for key in COUNTS_OF_HOOKS):
        changes['custom_hooks'] = [  # as a whole: a list of a base config is replaced
            dict(hook, **_stretched_counts(hook, COUNTS_OF_HOOKS, factor)) for hook in hooks
        ]
    return changes, reasons


def _stretched_scheduler(scheduler: dict[str, Any], factor: float,
                         iterations: int) -> dict[str, Any]:
    """Stretched by ``factor``; a warm-up stays as it is, or takes a tenth of a short training."""
    if scheduler.get('type') == 'LinearLR' and 'end' in scheduler:
        # of its steps, the last one is at the full rate
        return dict(scheduler, end=max(2, min(scheduler['end'], iterations // 10)))
    stretched = dict(scheduler, **_stretched_counts(scheduler, SCHEDULER_COUNTS, factor))
    if stretched.get('begin') and stretched['begin'] >= stretched.get('end', float('inf')):
        stretched['begin'] = stretched['end'] - 1
    return stretched


def _stretched_intervals(loop: dict[str, Any], factor: float) -> dict[str, Any]:
    """From where on evaluations are more frequent, stretched; nothing if they never are."""
    intervals = [(max(1, round(begin * factor)), interval)
                 for begin, interval in loop.get('dynamic_intervals') or ()]
    return dict(dynamic_intervals=intervals) if intervals else {}


def _stretched_counts(settings: dict[str, Any], keys: tuple[str, ...],
                      factor: float) -> dict[str, Any]:
    """Those of the settings that count, stretched, but for what is unset or starts at 0."""
    changed: dict[str, Any] = {}
    for key in keys:
        value = settings.get(key)
        if isinstance(value, list):
            changed[key] = [max(1, round(count * factor)) for count in value]
        elif value and value > 0:
            changed[key] = max(1, round(value * factor))
    return changed
