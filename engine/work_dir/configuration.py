"""Hooks and backends that fill the work dir of a run."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count

from ..runner.hooks import iter_hook_configs
from ..upstream import get_backends
from .best_metric import (find_best_metric, get_checkpoint_settings, get_stopping_metric,
                          is_validated, save_best_checkpoint)
from .early_stopping import EarlyStopping
from .last_checkpoint import replace_checkpoint_hook
from .metrics_recorder import CompleteMetrics, LoggedSteps, Recorder
from .metrics_table import MetricsTable
from .progress_line import show_progress_line
from .run import Run
from .trackers import add_trackers, check_trackers, tolerate_full_disk


def configure_run(cfg: Config, patience: int | None, min_delta: float | None,
                  trackers: Sequence[str]) -> None:
    """Make a config save its best checkpoint, and check the options of early stopping and trackers.

    Args:
        cfg: Config of a training, changed in place.
        patience: Number of evaluations without improvement after which training stops, or None.
        min_delta: Minimum improvement of the metric. Defaults to 0.
        trackers: Names of trackers.
    """
    check_trackers(trackers)
    save_best_checkpoint(cfg)
    if patience is None:
        if min_delta is not None:
            raise UserError('--min-delta has no effect without --patience N')
        return
    if patience < 1:
        raise UserError(f'--patience must be at least 1, got {patience}')
    if min_delta is not None and not min_delta >= 0:
        raise UserError(f'--min-delta must not be negative, got {min_delta}')
    if any('EarlyStoppingHook' in str(hook['type']) for hook in iter_hook_configs(cfg)):
        raise UserError('--patience and the EarlyStoppingHook in the config cannot be combined: '
                        'remove one of them')
    name, rule = get_stopping_metric(cfg)
    saving = get_checkpoint_settings(cfg)
    if saving is not None and saving.get('save_best') in ('auto', ['auto']):
        saving.update(save_best=name, rule=rule)  # mmengine would use the first metric it gets
    loop = cfg.train_cfg
    length = loop.get('max_iters') or loop.get('max_epochs') or 0
    num_evaluations = -(-length // loop.get('val_interval', 1))
    if num_evaluations <= patience:
        print_log(
            f'--patience {patience} has no effect, because training has only '
            f'{format_count(num_evaluations, "evaluation")}: lower train_cfg.val_interval',
            logger='current',
            level=logging.WARNING)


@contextmanager
def record_run(runner: Runner, *, patience: int | None, min_delta: float | None,
               trackers: Sequence[str]) -> Iterator[None]:
    """Context manager in which a training fills its work dir, and shows its progress."""
    cfg, table = runner.cfg, MetricsTable(Run(runner.work_dir).metrics)
    recorder, saving = Recorder(table), replace_checkpoint_hook(runner)
    names = [name for name in saving.names if name != 'auto'] if saving else []
    if patience is not None:
        monitor, rule = get_stopping_metric(cfg)
        names = list(dict.fromkeys([*names, monitor]))
    if is_validated(cfg):
        runner.register_hook(CompleteMetrics(names))
    get_backends(runner)[LoggedSteps.__name__] = LoggedSteps(runner, recorder)
    add_trackers(runner, trackers)
    runner.register_hook(recorder)
    if patience is not None:
        runner.register_hook(
            EarlyStopping(table, monitor, rule=rule, patience=patience, min_delta=min_delta or 0.))
    try:
        with tolerate_full_disk(runner), \
                show_progress_line(runner, names[0] if names else find_best_metric(cfg)):
            yield
    finally:  # mmengine keeps visualizers, which would keep the model
        del get_backends(runner)[LoggedSteps.__name__]
