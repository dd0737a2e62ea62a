"""Search of settings with Optuna: one training per trial, pruned early, resumable."""
from __future__ import annotations

import ast
import gc
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.atomic_files import check_writable, write_text
from colonnade.common.errors import UserError
from colonnade.common.missing_libraries import import_optional
from colonnade.engine.options import TrainOptions
from colonnade.engine.runner.signal_handling import Interrupted, handle_signals
from colonnade.engine.training import load_training_settings, prepare_runner
from colonnade.engine.work_dir import Run
from colonnade.engine.work_dir.best_metric import get_stopping_metric
from colonnade.engine.work_dir.early_stopping import StopBetweenSteps
from colonnade.engine.work_dir.metrics_table import MetricsTable
from colonnade.visualization.html_pages import Table
from colonnade.visualization.run_report.record_folder import is_training
from colonnade.visualization.run_report.recorder import RunRecord
from colonnade.visualization.run_report.search_page import (Search, Trial, format_settings,
                                                            write_search)

from .options import TuneOptions

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

__all__ = ['PAGE', 'Interrupted', 'tune']  # the tool catches the exception

JOURNAL, PAGE, TABLE = 'optuna_journal.log', 'report.html', 'trials.csv'  # files of a search
RATE = 'optim_wrapper.optimizer.lr'
FACTOR = 8  # the learning rate is searched from a FACTOR-th of the config's to FACTOR times
#: other settings that are searched if a config has them, and their ranges
DEFAULT_RANGES = {
    'optim_wrapper.paramwise_cfg.layer_decay_rate': (0.5, 1.),
    'model.backbone.drop_path_rate': (0., 0.4),
}
BEST = 'best'  # attribute of a pruned trial: its best metric
FIRST_TRIALS = 4  # trials that are never pruned


class PruningHook(StopBetweenSteps):
    """A hook that reports each evaluation to Optuna, and ends a training that lags behind."""

    def __init__(self, trial: optuna.Trial, metric: str, prunes: bool) -> None:
        self.trial, self.metric, self.prunes = trial, metric, prunes

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        score = (metrics or {}).get(self.metric)
        if score is None or not math.isfinite(score):
            return
        self.trial.report(score, runner.iter)
        self.should_stop = self.prunes and self.trial.should_prune()
        self.stop_between_steps(runner, runner.epoch, runner.iter)

    def explain(self) -> str:
        return f'{self.metric} is below the median of the other trials'


def tune(options: TuneOptions) -> tuple[Table, str]:
    """Run trials until there are as many as requested.

    Returns:
        Table of the trials, the best first, and the command that trains with the best settings.

    Raises:
        OSError: If a file cannot be read or written.
        UserError: If config, options and data do not fit each other, a search exists already, or no
            trial was successful.
        Interrupted: If a signal stopped a training.
    """
    import_optional('optuna', 'colonnade tune').logging.set_verbosity(30)  # warnings
    if options.trials < 1:
        raise UserError(f'--trials must be at least 1, got {options.trials}')
    cfg = load_training_settings(build_train_options(options, options.work_dir, {})).config
    metric, rule = get_stopping_metric(cfg, 'tune')
    ranges = parse_ranges(options.search, cfg)
    study = open_study(options, cfg, ranges, 'minimize' if rule == 'less' else 'maximize')
    for each in study.trials:
        folder = get_folder(options.work_dir, each.number)
        if each.state.name == 'RUNNING' and not (folder.is_dir() and is_training(folder)):
            trial = import_optional('optuna').trial.Trial(study, each._trial_id)
            run_trial(options, study, trial, metric)  # it was interrupted
    while sum(each.state.name != 'WAITING' for each in study.trials) < options.trials:
        run_trial(options, study, study.ask(ranges), metric)
    search = read_search(options, study, metric)
    if search.best is None:
        raise UserError(f'no trial has computed {metric}: see the logs in {options.work_dir}')
    return search.tabulate(), search.command


def build_train_options(options: TuneOptions, work_dir: Path, settings: dict[str,
                                                                             Any]) -> TrainOptions:
    """Return the options of a trial; a training that was interrupted continues."""
    shared = {
        name: vars(options)[name]
        for name in ('pretrained', 'amp', 'data_root', 'allow_external_files', 'trust')
    }
    return TrainOptions(
        options.config,
        cfg_options={
            'default_hooks.checkpoint.max_keep_ckpts': 1,
            **(options.cfg_options or {}),
            **settings
        },
        work_dir=work_dir,
        resume='auto' if Run(work_dir).checkpoints() else None,
        **shared)


def parse_ranges(search: dict[str, Any] | None, cfg: Config) -> dict[str, BaseDistribution]:
    """Return the ranges of the searched settings, by default those that matter most.

    Raises:
        UserError: If a range cannot be read, or the config has no such setting.
    """
    distributions = import_optional('optuna').distributions
    if search:
        for key in search:
            if get_setting(cfg, key) is None and key not in DEFAULT_RANGES:
                raise UserError(f'--search {key}: the config has no such setting')
        return {key: parse_range(key, value) for key, value in search.items()}
    rate = get_setting(cfg, RATE)
    if not isinstance(rate, float):
        raise UserError(f'the config has no {RATE}: pass --search KEY=LOW:HIGH')
    ranges = {RATE: distributions.FloatDistribution(rate / FACTOR, rate * FACTOR, log=True)}
    for key, (low, high) in DEFAULT_RANGES.items():
        if get_setting(cfg, key) is not None:
            ranges[key] = distributions.FloatDistribution(low, high)
    return ranges


def parse_range(key: str, value: Any) -> BaseDistribution:
    """Return the range of ``LOW:HIGH``, ``LOW:HIGH:log`` or a list of choices."""
    distributions = import_optional('optuna').distributions
    if isinstance(value, (list, tuple)):
        return distributions.CategoricalDistribution(value)
    low, _, rest = str(value).partition(':')
    high, _, scale = rest.partition(':')
    try:
        ends = [ast.literal_eval(text) for text in (low, high)]
        if scale not in ('', 'log') or not ends[0] < ends[1] or (scale and ends[0] <= 0):
            raise ValueError
    except (ValueError, SyntaxError, TypeError):
        raise UserError(f'--search {key} expects LOW:HIGH, LOW:HIGH:log with positive numbers, or '
                        f'A,B,C, got {value}') from None
    whole = all(type(end) is int for end in ends)
    kind = distributions.IntDistribution if whole else distributions.FloatDistribution
    return kind(*ends, log=bool(scale))


def get_setting(cfg: Config, key: str) -> Any:
    """Return the value of a dotted key, or None."""
    value: Any = cfg
    for part in key.split('.'):
        value = value.get(part) if isinstance(value, (dict, Config)) else None
    return value


def open_study(options: TuneOptions, cfg: Config, ranges: dict[str, BaseDistribution],
               direction: str) -> optuna.Study:
    """Return the study of a work dir. A new one begins with the settings of the config."""
    optuna = import_optional('optuna')
    folder, path = options.work_dir, options.work_dir / JOURNAL
    if path.exists() and not options.resume:
        raise UserError(f'{folder} has a search already: pass --resume to continue it, or choose '
                        'another --work-dir')
    is_new = not path.exists()
    check_writable(path)
    folder.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    study = optuna.create_study(
        study_name='colonnade',
        storage=optuna.storages.JournalStorage(backend),
        direction=direction,
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS))
    # A search that continues must not draw the same settings again.
    study.sampler = optuna.samplers.TPESampler(seed=options.seed + len(study.trials))
    about = {'config': str(options.config), 'ranges': {key: str(ranges[key]) for key in ranges}}
    if is_new:
        for key, value in about.items():
            study.set_user_attr(key, value)
        study.enqueue_trial(
            {key: value
             for key in ranges if contains(ranges[key], value := get_setting(cfg, key))})
    elif any(study.user_attrs.get(key) != value for key, value in about.items()):
        raise UserError(f'{folder} has a search of {study.user_attrs.get("config")} over '
                        f'{study.user_attrs.get("ranges")}: pass the same config and --search, or '
                        'choose another --work-dir')
    return study


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Return True if a value is in a range, or among the choices."""
    settings = vars(distribution)
    if 'choices' in settings:
        return value in settings['choices']
    return isinstance(value, (int, float)) and settings['low'] <= value <= settings['high']


def get_folder(work_dir: Path, number: int) -> Path:
    """Return the work dir of a trial."""
    return work_dir / f'trial_{number}'


def run_trial(options: TuneOptions, study: optuna.Study, trial: optuna.Trial, metric: str) -> None:
    """Train with the settings of a trial, and record its best metric.

    A training that diverges or runs out of memory is a failed trial.
    """
    states = import_optional('optuna').trial.TrialState
    folder, has_failed = get_folder(options.work_dir, trial.number), False
    print(f'trial {trial.number}: {" ".join(format_settings(trial.params))}', flush=True)
    hook = PruningHook(trial, metric, options.pruning)
    train_options = build_train_options(options, folder, trial.params)
    try:
        with prepare_runner(train_options, RunRecord) as runner:
            runner.register_hook(hook)
            with handle_signals(runner):
                runner.train()
    except (FloatingPointError, torch.OutOfMemoryError) as error:
        has_failed = True
        print_log(f'trial {trial.number}: {error}', logger='current', level=logging.WARNING)
    values = MetricsTable(Run(folder).metrics).values(metric)
    find_best = min if study.direction.name == 'MINIMIZE' else max
    best = find_best(filter(math.isfinite, values), default=None)
    if has_failed or best is None:
        state, shown = states.FAIL, 'failed'
    elif hook.should_stop:
        trial.set_user_attr(BEST, best)
        state, shown = states.PRUNED, f'{metric} {best:.4g}, stopped early'
    else:
        state, shown = states.COMPLETE, f'{metric} {best:.4g}'
    study.tell(trial, best if state == states.COMPLETE else None, state)
    runner = None  # noqa: F841  # frees its memory before the next model is built
    gc.collect()
    search = read_search(options, study, metric)
    write_text(options.work_dir / TABLE, search.format_csv())
    write_search(options.work_dir / PAGE, search)
    print(f'trial {trial.number}: {shown}', flush=True)


def read_search(options: TuneOptions, study: optuna.Study, metric: str) -> Search:
    """Return all trials of a study that have begun."""
    trials, log_settings = [], dict[str, None]()
    for each in study.trials:
        if each.state.name == 'WAITING':
            continue
        state = 'failed' if each.state.name == 'FAIL' else each.state.name.lower()
        seconds = each.duration.total_seconds() if each.duration else None
        trials.append(
            Trial(each.number, state,
                  each.user_attrs.get(BEST) if state == 'pruned' else each.value, each.params,
                  each.last_step or 0, seconds))
        log_settings |= dict.fromkeys(key for key, range_ in each.distributions.items()
                                      if vars(range_).get('log'))  # yapf: disable
    return Search(options.work_dir, metric, study.direction.name == 'MINIMIZE', trials,
                  list(log_settings), build_command(options))


def build_command(options: TuneOptions) -> list[str]:
    """Return the words of the command that trains with settings, which follow."""
    words = ['colonnade', 'train', str(options.config)]
    for name in ('pretrained', 'data_root'):
        if (value := vars(options)[name]) is not None:
            words += [f'--{name.replace("_", "-")}', str(value)]
    if options.amp:
        words += ['--amp'] if options.amp is True else ['--amp-dtype', str(options.amp)]
    return [*words, '--cfg-options', *format_settings(options.cfg_options or {})]
