"""The published batch size on other numbers of GPUs: accumulate gradients, or scale the rate."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError

from ..runner.hooks import averages_weights, hooks_of

#: settings of schedulers that count iterations unless ``by_epoch``
COUNTS_OF_SCHEDULERS = ('begin', 'end', 'T_max', 'step_size', 'total_iters', 'total_steps',
                        'milestones', 'periods')

#: key of what options have changed in a config, which a run writes to its work dir
APPLIED = 'colonnade_applied'


def num_processes(cfg: Config) -> int:
    """How many processes the launcher has started."""
    variables = VARIABLES.get(cfg.launcher)
    return int(os.environ.get(variables[1], 1)) if variables else 1


def batch_size(cfg: Config) -> int:
    """Images of all processes in one iteration."""
    return num_processes(cfg) * cfg.train_dataloader.batch_size


def set_total_batch_size(cfg: Config, total: int) -> None:
    """Let an iteration have so many images, of which each process takes an equal share.

    Runs then go on with another number of processes.

    Args:
        cfg: Changed in place.
        total: Images of all processes together.

    Raises:
        ValueError: If they cannot be shared out, or the config has no batch size.
    """
    processes = num_processes(cfg)
    share, rest = divmod(total, processes)
    if rest or share < 1:
        raise UserError(f'--total-batch {total} cannot be shared out evenly over {processes} '
                        'processes: take a multiple of their number')
    if 'batch_size' not in cfg.train_dataloader:
        raise UserError('--total-batch needs train_dataloader.batch_size in the config')
    cfg.train_dataloader.batch_size = share


def base_batch_size(cfg: Config) -> int:
    """Images of one step of the optimizer for which the config's learning rate is.

    Raises:
        ValueError: If the config does not say.
    """
    base = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    if not base:
        raise UserError('the config has no auto_scale_lr.base_batch_size: the batch size that its '
                        'learning rate is for')
    return base


def enable_auto_scale_lr(cfg: Config) -> None:
    """Let the runner multiply all learning rates by the batch size over the config's.

    Raises:
        ValueError: If the config does not say which batch size its rate is for.
    """
    applied = cfg.get(APPLIED, {})
    factor = batch_size(cfg) / base_batch_size(cfg)
    scale_final_rates(schedulers_of(cfg), factor / applied.get('final_rates', 1))
    cfg[APPLIED] = dict(applied, final_rates=factor)
    cfg.auto_scale_lr.enable = True


def scale_final_rates(schedulers: list[dict[str, Any]], factor: float) -> bool:
    """Multiply rates that schedulers name themselves, as their optimizer's is; whether any does."""
    changed = False
    for scheduler in schedulers:
        for key in ('eta_min', 'eta_max'):
            if scheduler.get(key) and 'Momentum' not in scheduler['type']:
                scheduler[key] = float(f'{scheduler[key] * factor:.3g}')
                changed = True
    return changed


def accumulate(cfg: Config, count: int | None = None) -> int:
    """Step once in ``count`` iterations, on the sum of their gradients.

    Whatever the config counts in iterations (schedules, evaluation, checkpoints) becomes ``count``
    times as long, so that the optimizer takes the same steps. A config that a run with this option
    has written stays as it is.

    Args:
        cfg: Changed in place.
        count: ``None`` takes as many as make up the batch size that the learning rate is for.

    Returns:
        The count.

    Raises:
        UserError: If no integer number of iterations makes up that batch size, or if the config was
            written by a run with another count.
    """
    if not cfg.get('train_cfg') or not cfg.get('optim_wrapper'):
        raise UserError('--accumulate needs a config that trains, with train_cfg, optim_wrapper')
    applied = cfg.get(APPLIED, {})
    before = applied.get('accumulate', 1)
    if count is None:
        base, now = round(base_batch_size(cfg) * before), batch_size(cfg)
        count, rest = divmod(base, now)
        if rest or not count:
            raise UserError(
                f'{num_processes(cfg)} processes x {cfg.train_dataloader.batch_size} images do not '
                f'divide the batch size {base} of the config: say --accumulate N, or set '
                'train_dataloader.batch_size')
    if count < 1:
        raise UserError(f'--accumulate must be at least 1, got {count}')
    if before not in (1, count):
        raise UserError(
            f'--accumulate {count} does not fit the config: it was written by a run with '
            f'--accumulate {before}, which is in its iterations. Pass --accumulate '
            f'{before}, or use the config that this run was started with')
    if before > 1:
        return count
    cfg[APPLIED] = dict(applied, accumulate=count)
    cfg.optim_wrapper.accumulative_counts = count
    if cfg.get('auto_scale_lr'):  # mmengine compares it with the images of one iteration
        cfg.auto_scale_lr.base_batch_size /= count
    _stretch_iterations(cfg, count)
    return count


def _stretch_iterations(cfg: Config, factor: int) -> None:
    """Multiply by ``factor`` what is counted in iterations."""
    if cfg.train_cfg.get('max_iters'):
        cfg.train_cfg.setdefault('val_interval', 1000)  # mmengine's default
        _multiply(cfg.train_cfg, ('max_iters', 'val_begin', 'val_interval'), factor)
        if intervals := cfg.train_cfg.get('dynamic_intervals'):
            cfg.train_cfg.dynamic_intervals = [(begin * factor, interval * factor)
                                               for begin, interval in intervals]
    for scheduler in schedulers_of(cfg):
        if not scheduler.get('by_epoch', True):
            _multiply(scheduler, COUNTS_OF_SCHEDULERS, factor)
            if scheduler['type'].startswith('Exponential'):  # by a factor in each iteration
                scheduler['gamma'] **= 1 / factor
    for hook in hooks_of(cfg):
        counts_iterations = hook['type'] == 'CheckpointHook' and not hook.get('by_epoch', True)
        if averages_weights(hook):
            hook.setdefault('interval', 1)
        if counts_iterations or averages_weights(hook):
            _multiply(hook, ('interval', 'begin_iter', 'save_begin'), factor)


def schedulers_of(cfg: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schedulers of rates and momentums, also where each optimizer has its own."""
    found = cfg.get('param_scheduler') or []
    if isinstance(found, dict) and 'type' not in found:
        return [item for group in found.values()
                for item in (group if isinstance(group, list) else [group])]  # yapf: disable
    return found if isinstance(found, list) else [found]


def _multiply(settings: dict[str, Any], keys: tuple[str, ...], factor: int) -> None:
    for key in keys:
        value = settings.get(key)
        if isinstance(value, (list, tuple)):
            settings[key] = [item * factor for item in value]
        elif value is not None and value > 0:  # -1 is never
            settings[key] = value * factor
