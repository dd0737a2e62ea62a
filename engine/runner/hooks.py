"""Hooks of a runner: those that a config names, and ours."""
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
from colonnade.settings.config_values import plain
from colonnade.settings.registries import find_class
from colonnade.weights.state_dicts import WeightsError

from ..upstream import is_resuming

BATCH = 'colonnade_batch'  # in the meta of checkpoints
#: default hooks that are there unless a config sets them to None
MMENGINE_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler',
                  'checkpoint')


def hooks_of(cfg: Config) -> Iterator[dict[str, Any]]:
    """The hooks that a config describes, but for those that it sets to None.

    Raises:
        ValueError: If one is no dict with a type.
    """
    default, custom = cfg.get('default_hooks') or {}, cfg.get('custom_hooks') or []
    for hook in filter(None, [*default.values(), *custom]):
        if isinstance(hook, Hook):  # built already, by a config in Python
            continue
        if not isinstance(hook, dict) or 'type' not in hook:
            raise UserError(f'a hook of a config must be a dict with a type, got {hook!r}')
        yield hook


def drop_absent_hooks(cfg: Config) -> None:
    """Take hooks that are set to None for what they are: mmengine knows that of its own alone.

    Args:
        cfg: Changed in place.
    """
    for name, hook in list((cfg.get('default_hooks') or {}).items()):
        if hook is None and name not in MMENGINE_HOOKS:
            del cfg.default_hooks[name]


def averages_weights(hook: Hook | dict[str, Any]) -> bool:
    """Whether a hook of a config is mmengine's EMAHook or one that is made from it."""
    kind = type(hook) if isinstance(hook, Hook) else find_class(hook['type'], HOOKS)
    return isinstance(kind, type) and issubclass(kind, EMAHook)


def wrappers_of(optim_wrapper: Any) -> list[OptimWrapper]:
    """The wrappers of optimizers that take steps; none of kinds that are not mmengine's."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return [each for each in optim_wrapper.values() if isinstance(each, OptimWrapper)]
    return [optim_wrapper] if isinstance(optim_wrapper, OptimWrapper) else []


def is_between_steps(runner: Runner) -> bool:
    """Whether the optimizers of a training have stepped on all gradients that there are."""
    return all(each.should_update() for each in wrappers_of(runner.optim_wrapper))


def drop_averaging(cfg: Config) -> None:
    """Leave averaging of weights out of an evaluation: checkpoints hold averaged weights already.

    Args:
        cfg: Changed in place.
    """
    for name, hook in (cfg.get('default_hooks') or {}).items():
        if hook and averages_weights(hook):
            cfg.default_hooks[name] = None
    if cfg.get('custom_hooks'):
        cfg.custom_hooks = [
            hook for hook in cfg.custom_hooks if not (hook and averages_weights(hook))
        ]


class BatchSizeHook(Hook):
    """Notes in checkpoints how many images made up a step, and compares when training goes on.

    Iterations are what checkpoints and schedules count. With another number of processes, images or
    accumulated gradients they would mean something else, and training would end too early or late.
    What else is noted beside the weights becomes plain dicts, which load without mmengine.
    """

    priority = 'VERY_HIGH'

    def __init__(self, images_per_process: int, accumulate: int) -> None:
        self.images_per_process = images_per_process
        self.accumulate = accumulate

    @property
    def batch(self) -> dict[str, int]:
        """What one iteration and one step of this run are."""
        images = self.images_per_process * get_world_size()
        return dict(images_per_iteration=images, iterations_per_step=self.accumulate)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Note this run's numbers."""
        checkpoint['meta'] = {**plain(checkpoint['meta']), BATCH: self.batch}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare a checkpoint that training goes on from.

        Raises:
            WeightsError: If its iterations were others.
        """
        if is_resuming(runner):
            self.compare(checkpoint)

    def compare(self, checkpoint: dict) -> None:
        """Raise a WeightsError if a checkpoint's batch was another; older ones do not say."""
        then, now = checkpoint.get('meta', {}).get(BATCH), self.batch
        if then is None or then == now:
            return
        images, count = then['images_per_iteration'], then['iterations_per_step']
        advice = [f'--accumulate {count}'] if count > 1 else []
        if count == 1 < now['iterations_per_step']:
            advice = ['no --accumulate']
        share, rest = divmod(images, get_world_size())
        if rest or not share:
            advice = [f'a number of processes that divides {images}', *advice]
        elif images != now['images_per_iteration']:
            advice.append(f'--cfg-options train_dataloader.batch_size={share}')
        raise WeightsError(
            f'the checkpoint was trained with {described(then)}, this run has {described(now)}: '
            f'its iterations would be counted wrongly. Go on with {" and ".join(advice)}, or '
            'start a new schedule from its weights with --load-from')

    def before_train(self, runner: Runner) -> None:
        """Warn if nothing is left to train."""
        if runner.iter >= runner.max_iters:
            print_log(
                f'nothing is left to train: the checkpoint is at iteration {runner.iter} of '
                f'{runner.max_iters}',
                logger='current',
                level=logging.WARNING)


class SameBuffers(Hook):
    """Give all processes the first one's buffers when training starts, and before evaluations.

    mmengine does so at the start for what checkpoints hold, and not for other buffers. Batch norms
    that are not synchronized gather statistics in each process; checkpoints hold the first one's.
    """

    priority = 'VERY_HIGH'  # before averaged weights take their place

    def before_train(self, runner: Runner) -> None:
        """Take the first process' buffers."""
        self.before_val_epoch(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """Take the first process' buffers."""
        averages = [hook.ema_model for hook in runner.hooks if averages_weights(hook)]
        for model in (runner.model, *averages):
            for buffer in model.buffers():
                broadcast(buffer)


class HistoryLimit(Hook):
    """Hook that keeps only as many logged numbers as the log is smoothed over.

    mmengine keeps the numbers of up to a million iterations, copies them all in each iteration and
    saves them in each checkpoint.
    """

    priority = 'LOWEST'  # after the hooks that log

    def before_train(self, runner: Runner) -> None:
        """Find out how many numbers are needed, and bound what a checkpoint has brought."""
        self.windows = {mode: find_log_window(runner, mode) for mode in ('train', 'val')}
        self.unbounded = {
            each['data_src']
            for each in runner.log_processor.custom_cfg
            if each.get('method_name') != 'current' and each.get('window_size') in (None, 'global')
        }
        self.limit(runner)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Bound the numbers that were logged for the first time."""
        self.limit(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Bound the numbers that were logged for the first time."""
        self.limit(runner)

    def limit(self, runner: Runner) -> None:
        """Set the lengths of all histories; the next update of each cuts it off."""
        for key, history in runner.message_hub.log_scalars.items():
            mode, _, name = key.partition('/')
            if mode in self.windows and name not in self.unbounded:
                history.max_length = self.windows[mode]


def find_log_window(runner: Runner, mode: str) -> int:
    """Return over how many iterations of training or validation the log is smoothed at most.

    Args:
        runner: Runner of a training.
        mode: ``'train'`` or ``'val'``.
    """
    processor = runner.log_processor
    windows = [processor.window_size, *(each.get('window_size') for each in processor.custom_cfg)]
    if mode == 'val' and runner.val_loop is not None:  # times are means over an evaluation
        windows.append(len(runner.val_loop.dataloader))
    elif mode == 'train' and 'epoch' in windows:
        windows.append(len(runner.train_dataloader))
    return max(1, *(window for window in windows if isinstance(window, int)))


def described(batch: dict[str, int]) -> str:
    """A batch in words."""
    count = batch['iterations_per_step']
    return (f'{batch["images_per_iteration"]} images an iteration, {count} '
            f'iteration{"s" * (count > 1)} a step')


#: warnings of mmengine of what its own hooks use
MMENGINE_OF_ITSELF = ('"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
FROZEN = ' is skipped since its requires_grad=False'  # what the maker of optimizers says of each


class QuietFilter(logging.Filter):
    """Leaves out of the log what is of no use to users, and calls no error what is none."""

    def __init__(self) -> None:
        super().__init__()
        self.has_frozen = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        text = record.getMessage()
        if text.startswith(('paramwise_options -- ', *MMENGINE_OF_ITSELF)):
            return False
        if text.endswith(FROZEN):
            if self.has_frozen:
                return False
            self.has_frozen = True
            name = text.removesuffix(FROZEN)
            record.msg, record.args = f'frozen parameters are not trained, the first is {name}', ()
        if 'testing results of the whole dataset is empty' in text:
            record.levelno, record.levelname = logging.WARNING, 'WARNING'
            record.msg, record.args = 'nothing was detected in any image: no mAP', ()
        return True
