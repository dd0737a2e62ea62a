"""Hooks of a runner: those in configs, and those that every training of Colonnade has."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config
from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import EMAHook, Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count
from colonnade.settings.config_values import plain
from colonnade.settings.registries import find_class
from colonnade.weights.state_dicts import WeightsError

from ..upstream import is_resuming

BATCH = 'colonnade_batch'  # key in the meta of checkpoints
#: hooks that mmengine adds by default, and for which None in a config means none
MMENGINE_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler',
                  'checkpoint')


def iter_hook_configs(cfg: Config) -> Iterator[dict[str, Any]]:
    """Yield the hooks that a config describes, without those that are None or already built."""
    default, custom = cfg.get('default_hooks') or {}, cfg.get('custom_hooks') or []
    for hook in filter(None, [*default.values(), *custom]):
        if isinstance(hook, Hook):
            continue
        if not isinstance(hook, dict) or 'type' not in hook:
            raise UserError(f'hooks in a config must be dicts with a type, got {hook!r}')
        yield hook


def remove_null_hooks(cfg: Config) -> None:
    """Remove default hooks that a config sets to None and that mmengine would try to build."""
    for name, hook in list((cfg.get('default_hooks') or {}).items()):
        if hook is None and name not in MMENGINE_HOOKS:
            del cfg.default_hooks[name]


def is_ema_hook(hook: Hook | dict[str, Any]) -> bool:
    """Return True for mmengine's EMAHook and its subclasses, built or in a config."""
    hook_class = type(hook) if isinstance(hook, Hook) else find_class(hook['type'], HOOKS)
    return isinstance(hook_class, type) and issubclass(hook_class, EMAHook)


def remove_ema_hooks(cfg: Config) -> None:
    """Remove EMA hooks for an evaluation, because checkpoints already hold the EMA weights."""
    for name, hook in (cfg.get('default_hooks') or {}).items():
        if hook and is_ema_hook(hook):
            cfg.default_hooks[name] = None
    if cfg.get('custom_hooks'):
        cfg.custom_hooks = [hook for hook in cfg.custom_hooks if not (hook and is_ema_hook(hook))]


def get_optim_wrappers(optim_wrapper: Any) -> list[OptimWrapper]:
    """Return mmengine's optimizer wrappers in a wrapper of one or several optimizers."""
    wrappers = optim_wrapper.values() if isinstance(optim_wrapper, OptimWrapperDict) else \
        [optim_wrapper]
    return [each for each in wrappers if isinstance(each, OptimWrapper)]


def is_between_steps(runner: Runner) -> bool:
    """Return True if no accumulated gradients wait for a step of the optimizer."""
    return all(each.should_update() for each in get_optim_wrappers(runner.optim_wrapper))


class BatchSizeHook(Hook):
    """A hook that records the batch size in checkpoints, and checks it on resuming.

    Checkpoints and schedules count iterations. With a different number of processes, images or
    accumulated gradients, training would end too early or too late. The other metadata become plain
    dicts, which load without mmengine.
    """

    priority = 'VERY_HIGH'

    def __init__(self, images_per_process: int, accumulate: int) -> None:
        self.images_per_process = images_per_process
        self.accumulate = accumulate

    @property
    def batch(self) -> dict[str, int]:
        """The batch size of this run."""
        images = self.images_per_process * get_world_size()
        return dict(images_per_iteration=images, iterations_per_step=self.accumulate)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['meta'] = {**plain(checkpoint['meta']), BATCH: self.batch}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if is_resuming(runner):
            self.compare(checkpoint)

    def compare(self, checkpoint: dict) -> None:
        """Check the batch size of a checkpoint, if it records one."""
        saved, current = checkpoint.get('meta', {}).get(BATCH), self.batch
        if saved is None or saved == current:
            return
        images, count = saved['images_per_iteration'], saved['iterations_per_step']
        options = [f'--grad-accum {count}'] if count > 1 else []
        if count == 1 < current['iterations_per_step']:
            options = ['no --grad-accum']
        images_per_process, rest = divmod(images, get_world_size())
        if rest or not images_per_process:
            options = [f'a number of processes that divides {images}', *options]
        elif images != current['images_per_iteration']:
            options.append(f'--cfg-options train_dataloader.batch_size={images_per_process}')
        raise WeightsError(
            f'the batch size changed from {_format_batch(saved)} in the checkpoint to '
            f'{_format_batch(current)}, so training would end at the wrong iteration: resume with '
            f'{" and ".join(options)}, or start a new schedule from the weights of the '
            'checkpoint with --load-from')

    def before_train(self, runner: Runner) -> None:
        if runner.iter >= runner.max_iters:
            print_log(
                f'training is already complete: the checkpoint is at iteration {runner.iter} of '
                f'{runner.max_iters}',
                logger='current',
                level=logging.WARNING)


def _format_batch(batch: dict[str, int]) -> str:
    return (f'{batch["images_per_iteration"]} images per iteration and '
            f'{format_count(batch["iterations_per_step"], "iteration")} per step')


class BroadcastBuffers(Hook):
    """A hook that sends the buffers of the first process to all, initially and for evaluations.

    mmengine only does so initially, and only for what checkpoints hold. Batch norms that are not
    synchronized collect statistics in each process; checkpoints hold those of the first one.
    """

    priority = 'VERY_HIGH'  # before EMA weights are swapped in

    def before_train(self, runner: Runner) -> None:
        self.before_val_epoch(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        ema_models = [hook.ema_model for hook in runner.hooks if is_ema_hook(hook)]
        for model in (runner.model, *ema_models):
            for buffer in model.buffers():
                broadcast(buffer)


class HistoryLimit(Hook):
    """A hook that keeps only as many logged numbers as the log is smoothed over.

    mmengine keeps the numbers of up to a million iterations, copies them all in each iteration and
    saves them in each checkpoint.
    """

    priority = 'LOWEST'  # after the hooks that log

    def before_train(self, runner: Runner) -> None:
        self.windows = {mode: _find_log_window(runner, mode) for mode in ('train', 'val')}
        self.unbounded = {
            each['data_src']
            for each in runner.log_processor.custom_cfg
            if each.get('method_name') != 'current' and each.get('window_size') in (None, 'global')
        }
        self.limit(runner)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        self.limit(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self.limit(runner)

    def limit(self, runner: Runner) -> None:
        """Set the maximum lengths of all histories; their next update cuts them off."""
        for key, history in runner.message_hub.log_scalars.items():
            mode, _, name = key.partition('/')
            if mode in self.windows and name not in self.unbounded:
                history.max_length = self.windows[mode]


def _find_log_window(runner: Runner, mode: str) -> int:
    """Return the maximum number of iterations over which the log is smoothed."""
    processor = runner.log_processor
    windows = [processor.window_size, *(each.get('window_size') for each in processor.custom_cfg)]
    if mode == 'val' and runner.val_loop is not None:  # times are means over an evaluation
        windows.append(len(runner.val_loop.dataloader))
    elif mode == 'train' and 'epoch' in windows:
        windows.append(len(runner.train_dataloader))
    return max(1, *(window for window in windows if isinstance(window, int)))
