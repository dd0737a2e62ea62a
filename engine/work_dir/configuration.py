"""What fills a run's folder, attached to its config and its runner."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.errors import UserError

from ..runner.hooks import hooks_of
from ..upstream import get_backends
from .best_metric import best_metric, is_validated, keep_best, settle_auto, watched_metric
from .early_stopping import Patience
from .last_checkpoint import take_over_saving
from .metrics_recorder import CompleteMetrics, LoggedSteps, Recorder
from .metrics_table import MetricsTable
from .progress_line import progress_line
from .run import Run
from .trackers import add_trackers, check_trackers, tolerate_full_disk


def settle(cfg: Config, patience: int | None, min_delta: float | None,
           trackers: Sequence[str]) -> None:
    """Let a config save its best checkpoint, and check what is asked of a run's folder.

    Args:
        cfg: Of a training, changed in place.
        patience: After how many evaluations that bring nothing training stops; None for never.
        min_delta: By how much the metric must exceed the best to count; 0 if not given.
        trackers: Names, see :data:`~.trackers.TRACKERS`.

    Raises:
        ValueError: If the config cannot do it, or an option has no effect.
    """
    check_trackers(trackers)
    keep_best(cfg)
    if patience is None:
        if min_delta is not None:
            raise UserError('--min-delta has no effect without --patience N')
        return
    if patience < 1:
        raise UserError(f'--patience must be at least 1, got {patience}')
    if min_delta is not None and not min_delta >= 0:
        raise UserError(f'--min-delta must not be negative, got {min_delta}')
    if any('EarlyStoppingHook' in str(hook['type']) for hook in hooks_of(cfg)):
        raise UserError('--patience: the config has an EarlyStoppingHook, leave one of them out')
    settle_auto(cfg)
    loop = cfg.train_cfg
    length = loop.get('max_iters') or loop.get('max_epochs') or 0
    due = -(-length // loop.get('val_interval', 1))
    if due <= patience:
        print_log(
            f'--patience {patience} will stop nothing, with {due} evaluations in all: '
            'train_cfg.val_interval sets how often there is one',
            logger='current',
            level=logging.WARNING)


@contextmanager
def recorded(runner: Runner, *, patience: int | None, min_delta: float | None,
             trackers: Sequence[str]) -> Iterator[None]:
    """While open, a runner's training fills its folder, and shows its progress on a terminal.

    Args:
        runner: Of a config that :func:`settle` has seen.
        patience: See :func:`settle`.
        min_delta: See :func:`settle`.
        trackers: See :func:`settle`.
    """
    cfg, table = runner.cfg, MetricsTable(Run(runner.work_dir).metrics)
    recorder, saving = Recorder(table), take_over_saving(runner)
    names = [name for name in saving.names if name != 'auto'] if saving else []
    if patience is not None:
        monitor, rule = watched_metric(cfg)
        names = list(dict.fromkeys([*names, monitor]))
    if is_validated(cfg):
        runner.register_hook(CompleteMetrics(names))
    get_backends(runner)[LoggedSteps.__name__] = LoggedSteps(runner, recorder)
    add_trackers(runner, trackers)
    runner.register_hook(recorder)
    if patience is not None:
        runner.register_hook(
            Patience(table, monitor, rule=rule, patience=patience, min_delta=min_delta or 0.))
    try:
        with tolerate_full_disk(runner), \
                progress_line(runner, names[0] if names else best_metric(cfg)):
            yield
    finally:  # mmengine keeps visualizers, which would keep the model
        del get_backends(runner)[LoggedSteps.__name__]
