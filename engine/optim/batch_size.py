"""Reference batch sizes on other hardware: gradient accumulation and learning rate scaling."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count

from ..runner.hooks import is_ema_hook, iter_hook_configs

#: settings of schedulers that count iterations unless ``by_epoch``
SCHEDULER_COUNTS = ('begin', 'end', 'T_max', 'step_size', 'total_iters', 'total_steps',
                    'milestones', 'periods')

#: key of what options have changed in a config, which a run writes to its work dir
APPLIED = 'colonnade_applied'


def count_processes(cfg: Config) -> int:
    """Return the number of processes that the launcher has started."""
    variables = VARIABLES.get(cfg.launcher)
    return int(os.environ.get(variables[1], 1)) if variables else 1


def get_batch_size(cfg: Config) -> int:
    """Return the images of all processes in one iteration."""
    return count_processes(cfg) * cfg.train_dataloader.batch_size


def set_total_batch_size(cfg: Config, total: int) -> None:
    """Split the images of an iteration between the processes, whatever their number."""
    num_processes = count_processes(cfg)
    share, rest = divmod(total, num_processes)
    if rest or share < 1:
        raise UserError('--total-batch-size must be a multiple of the number of processes, '
                        f'{num_processes}, got {total}')
    if 'batch_size' not in cfg.train_dataloader:
        raise UserError('--total-batch-size needs train_dataloader.batch_size in the config')
    cfg.train_dataloader.batch_size = share


def get_base_batch_size(cfg: Config) -> int:
    """Return the images of one optimizer step that the learning rate of a config is for."""
    base = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    if not base:
        raise UserError('the config has no auto_scale_lr.base_batch_size, the batch size that its '
                        'learning rate is tuned for: set it')
    return base


def enable_auto_scale_lr(cfg: Config) -> None:
    """Make the runner scale all learning rates by the batch size relative to the config's."""
    applied = cfg.get(APPLIED, {})
    factor = get_batch_size(cfg) / get_base_batch_size(cfg)
    scale_final_rates(get_schedulers(cfg), factor / applied.get('final_rates', 1))
    cfg[APPLIED] = dict(applied, final_rates=factor)
    cfg.auto_scale_lr.enable = True


def scale_final_rates(schedulers: list[dict[str, Any]], factor: float) -> bool:
    """Multiply absolute learning rates of schedulers; return True if there are any."""
    has_changed = False
    for scheduler in schedulers:
        for key in ('eta_min', 'eta_max'):
            if scheduler.get(key) and 'Momentum' not in scheduler['type']:
                scheduler[key] = float(f'{scheduler[key] * factor:.3g}')
                has_changed = True
    return has_changed


def set_grad_accumulation(cfg: Config, count: int | None = None) -> int:
    """Make the optimizer step once in ``count`` iterations, on the sum of their gradients.

    Everything that the config counts in iterations (schedules, evaluations, checkpoints) becomes
    ``count`` times as long, so that the optimizer takes the same steps. A config that a run with
    this option has written is not stretched again.

    Args:
        cfg: Config, changed in place.
        count: Number of iterations. Defaults to as many as make up the reference batch size.

    Returns:
        The count.
    """
    if not cfg.get('train_cfg') or not cfg.get('optim_wrapper'):
        raise UserError('--grad-accum needs a training config, with train_cfg and optim_wrapper')
    applied = cfg.get(APPLIED, {})
    before = applied.get('accumulate', 1)
    if count is None:
        base, current = round(get_base_batch_size(cfg) * before), get_batch_size(cfg)
        count, rest = divmod(base, current)
        if rest or not count:
            raise UserError(
                f'the batch size of {base} in the config is not a multiple of '
                f'{format_count(count_processes(cfg), "process")} x '
                f'{cfg.train_dataloader.batch_size} images: pass --grad-accum N, or set '
                'train_dataloader.batch_size')
    if count < 1:
        raise UserError(f'--grad-accum must be at least 1, got {count}')
    if before not in (1, count):
        raise UserError(
            f'--grad-accum {count} does not match the config, which was written by a run whose '
            f'--grad-accum {before} scaled the iteration counts: pass --grad-accum {before}, '
            'or use the config that the run was started with')
    if before > 1:
        return count
    cfg[APPLIED] = dict(applied, accumulate=count)
    cfg.optim_wrapper.accumulative_counts = count
    if cfg.get('auto_scale_lr'):  # mmengine compares it with the images of one iteration
        cfg.auto_scale_lr.base_batch_size /= count
    _stretch_iterations(cfg, count)
    return count


def _stretch_iterations(cfg: Config, factor: int) -> None:
    """Multiply everything that is counted in iterations."""
    if cfg.train_cfg.get('max_iters'):
        cfg.train_cfg.setdefault('val_interval', 1000)  # mmengine's default
        _multiply(cfg.train_cfg, ('max_iters', 'val_begin', 'val_interval'), factor)
        if intervals := cfg.train_cfg.get('dynamic_intervals'):
            cfg.train_cfg.dynamic_intervals = [(begin * factor, interval * factor)
                                               for begin, interval in intervals]
    for scheduler in get_schedulers(cfg):
        if not scheduler.get('by_epoch', True):
            _multiply(scheduler, SCHEDULER_COUNTS, factor)
            if scheduler['type'].startswith('Exponential'):  # gamma is a factor per iteration
                scheduler['gamma'] **= 1 / factor
    for hook in iter_hook_configs(cfg):
        counts_iterations = hook['type'] == 'CheckpointHook' and not hook.get('by_epoch', True)
        if is_ema_hook(hook):
            hook.setdefault('interval', 1)
        if counts_iterations or is_ema_hook(hook):
            _multiply(hook, ('interval', 'begin_iter', 'save_begin'), factor)


def get_schedulers(cfg: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the schedulers of a config, also if each optimizer has its own."""
    schedulers = cfg.get('param_scheduler') or []
    if isinstance(schedulers, dict) and 'type' not in schedulers:
        return [item for group in schedulers.values()
                for item in (group if isinstance(group, list) else [group])]  # yapf: disable
    return schedulers if isinstance(schedulers, list) else [schedulers]


def _multiply(settings: dict[str, Any], keys: tuple[str, ...], factor: int) -> None:
    for key in keys:
        value = settings.get(key)
        if isinstance(value, (list, tuple)):
            settings[key] = [item * factor for item in value]
        elif value is not None and value > 0:  # -1 means never
            settings[key] = value * factor
