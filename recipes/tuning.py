"""Search of settings with Optuna: one training per trial, pruned early, resumable."""
from __future__ import annotations

import ast
import gc
import logging
import math
import sys
import traceback
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, fields, replace
from io import TextIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from mmengine.config import Config
from mmengine.hooks import EarlyStoppingHook
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.atomic_files import check_writable, write_text
from colonnade.common.errors import UserError
from colonnade.common.locking import lock_folder
from colonnade.common.missing_libraries import import_optional
from colonnade.common.options import format_words
from colonnade.engine.options import TrainingSettings, TrainOptions
from colonnade.engine.runner.signal_handling import Interrupted, handle_signals
from colonnade.engine.training import load_training_settings, prepare_runner
from colonnade.engine.work_dir import Run
from colonnade.engine.work_dir.best_metric import get_stopping_metric
from colonnade.engine.work_dir.early_stopping import StopBetweenSteps
from colonnade.engine.work_dir.metrics_table import MetricsTable
from colonnade.visualization.html_pages import Table
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
#: options of each trial, except for its config
SHARED = (*(each.name for each in fields(TrainingSettings)), 'data_root', 'allow_external_files',
          'trust')  # yapf: disable
#: options that may change when a search continues
FREE = ('allow_external_files', 'trust')
BEST = 'best'  # attribute of a pruned trial: its best metric
FIRST_TRIALS = 4  # trials that are never pruned


class Silent(TextIOBase):
    """The terminal of a trial, whose log is in its work dir."""

    def write(self, text: str) -> int:
        return len(text)


class PruningHook(StopBetweenSteps):
    """A hook that prints and reports each evaluation, and ends a training that lags behind."""

    def __init__(self, trial: optuna.Trial, metric: str, prunes: bool) -> None:
        self.trial, self.metric, self.prunes = trial, metric, prunes
        self.terminal = sys.stdout
        self.has_stopped = False

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        score = (metrics or {}).get(self.metric)
        if score is None or not math.isfinite(score):
            return
        with suppress(OSError, ValueError):  # a closed terminal does not end a trial
            print(f'  iteration {runner.iter} of {runner.max_iters}: {self.metric} {score:.4g}',
                  file=self.terminal, flush=True)  # yapf: disable
        self.trial.report(score, runner.iter)
        self.should_stop = self.prunes and self.trial.should_prune()
        self.stop_between_steps(runner, runner.epoch, runner.iter)

    def stop(self, runner: Runner, iteration: int) -> None:
        super().stop(runner, iteration)
        self.has_stopped = True

    def explain(self) -> str:
        return f'{self.metric} is worse than the median of the other trials'


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
    # The settings that a trial scales are searched in the units of the config.
    unscaled = replace(options, grad_accum=None, auto_scale_lr=False, total_batch_size=None)
    cfg = load_training_settings(build_train_options(unscaled, options.work_dir, {})).config
    metric, rule = get_stopping_metric(cfg, 'tune')
    rule = EarlyStoppingHook(metric, rule=rule).rule  # inferred from the name if it is not set
    ranges = parse_ranges(options.search, cfg)
    check_writable(options.work_dir / JOURNAL)
    options.work_dir.mkdir(parents=True, exist_ok=True)
    with lock_folder(options.work_dir, f'another process is searching in {options.work_dir}'):
        study = open_study(options, cfg, ranges, 'minimize' if rule == 'less' else 'maximize')
        for each in study.trials:
            if each.state.name == 'RUNNING':  # it was interrupted
                trial = import_optional('optuna').trial.Trial(study, each._trial_id)
                run_trial(options, study, trial, metric, resume='auto')
        if count_begun(study) >= options.trials:
            print(f'{options.trials} trials have run: continue with a larger --trials')
        while count_begun(study) < options.trials:
            run_trial(options, study, study.ask(ranges), metric)
        search = read_search(options, study, metric)
    if search.best is None:
        raise UserError(f'no trial has computed {metric}: see the logs in {options.work_dir}')
    return search.tabulate(), search.command


def count_begun(study: optuna.Study) -> int:
    """Return the number of trials that have begun."""
    return sum(each.state.name != 'WAITING' for each in study.trials)


def build_train_options(options: TuneOptions,
                        work_dir: Path,
                        settings: dict[str, Any],
                        resume: str | None = None) -> TrainOptions:
    """Return the options of a trial."""
    shared = {name: vars(options)[name] for name in SHARED}
    return TrainOptions(
        options.config,
        cfg_options={
            **(options.cfg_options or {}),
            **settings
        },
        work_dir=work_dir,
        resume=resume,
        **shared)


def parse_ranges(search: dict[str, Any] | None, cfg: Config) -> dict[str, BaseDistribution]:
    """Return the ranges of the searched settings, by default those that matter most.

    Raises:
        UserError: If a range cannot be read, or the config has no such setting.
    """
    distributions = import_optional('optuna').distributions
    if search:
        for key in search:
            if get_setting(cfg, key) is MISSING and key not in DEFAULT_RANGES:
                raise UserError(f'--search {key}: the config has no such setting; add it with '
                                f'--cfg-options {key}=VALUE')
        return {
            key: parse_range(key, value, get_setting(cfg, key))
            for key, value in search.items()
        }
    rate = get_setting(cfg, RATE)
    if not isinstance(rate, float) or not 0 < rate < math.inf:
        raise UserError(f'the config has no positive {RATE}: pass --search KEY=LOW:HIGH')
    ranges = {RATE: distributions.FloatDistribution(rate / FACTOR, rate * FACTOR, log=True)}
    for key, (low, high) in DEFAULT_RANGES.items():
        if get_setting(cfg, key) not in (None, MISSING):
            ranges[key] = distributions.FloatDistribution(low, high)
    return ranges


def parse_range(key: str, value: Any, present: Any = None) -> BaseDistribution:
    """Return the range of ``LOW:HIGH``, ``LOW:HIGH:log`` or a list of choices.

    It consists of integers if the present value of the config is one.
    """
    distributions = import_optional('optuna').distributions
    if isinstance(value, (list, tuple)):
        return distributions.CategoricalDistribution(value)
    low, _, rest = str(value).partition(':')
    high, _, scale = rest.partition(':')
    try:
        ends = [ast.literal_eval(text) for text in (low, high)]
        if scale not in ('', 'log') or not ends[0] < ends[1] < math.inf or \
                not ends[0] > (0 if scale else -math.inf):
            raise ValueError
    except (ValueError, SyntaxError, TypeError):
        raise UserError(
            f'--search {key} expects LOW:HIGH with LOW < HIGH, LOW:HIGH:log with positive '
            f'numbers, or A,B,C, got {value}') from None
    whole = type(present) is int and all(type(end) is int for end in ends)
    kind = distributions.IntDistribution if whole else distributions.FloatDistribution
    return kind(*ends, log=bool(scale))


def get_setting(cfg: Config, key: str) -> Any:
    """Return the value of a dotted key, in which numbers are places in lists, or MISSING."""
    value: Any = cfg
    for part in key.split('.'):
        if isinstance(value, (dict, Config)):
            value = value.get(part, MISSING)
        elif isinstance(value, (list, tuple)) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def open_study(options: TuneOptions, cfg: Config, ranges: dict[str, BaseDistribution],
               direction: str) -> optuna.Study:
    """Return the study of a work dir. A new one begins with the settings of the config."""
    optuna = import_optional('optuna')
    folder, path = options.work_dir, options.work_dir / JOURNAL
    if path.exists() and not options.resume:
        raise UserError(f'{folder} has a search already: pass --resume to continue it, or choose '
                        'another --work-dir')
    if not path.exists() and any(folder.glob('trial_*')):
        raise UserError(f'{folder} has trials of another search, but no {JOURNAL}: choose another '
                        '--work-dir')
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    study = optuna.create_study(
        study_name='colonnade',
        storage=optuna.storages.JournalStorage(backend),
        direction=direction,
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS))
    # A search that continues must not draw the same settings again.
    study.sampler = optuna.samplers.TPESampler(seed=options.seed + len(study.trials))
    about = {
        name: str(vars(options)[name])
        for name in ('config', 'cfg_options', *SHARED) if name not in FREE
    }
    about['ranges'] = ', '.join(f'{key} {ranges[key]}' for key in ranges)
    # Options that an earlier version did not have.
    defaults = {each.name: str(each.default) for each in fields(TrainingSettings)}
    for name, value in about.items():
        old = study.user_attrs.get(name, defaults.get(name, value) if study.trials else value)
        if old != value:
            raise UserError(f'{folder} has a search with {name} {old}, not {value}: pass the same '
                            'options, or choose another --work-dir')
        study.set_user_attr(name, value)
    if not study.trials:
        study.enqueue_trial(
            {key: value
             for key in ranges if contains(ranges[key], value := get_setting(cfg, key))})
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


def run_trial(options: TuneOptions,
              study: optuna.Study,
              trial: optuna.Trial,
              metric: str,
              resume: str | None = None) -> None:
    """Train with the settings of a trial, and record its best metric.

    A training that fails is a failed trial, unless no trial has ever been successful.
    """
    states = import_optional('optuna').trial.TrialState
    folder, failure = get_folder(options.work_dir, trial.number), None
    print(f'trial {trial.number}: {" ".join(format_settings(trial.params))}', flush=True)
    hook = PruningHook(trial, metric, options.pruning)
    try:
        train_options = build_train_options(options, folder, trial.params, resume)
        with redirect_stdout(Silent()), prepare_runner(train_options, RunRecord) as runner:
            runner.register_hook(hook)
            with handle_signals(runner):
                runner.train()
    except Interrupted:
        raise
    except Exception as error:  # settings can break a training in any way
        failure = error
        traceback.clear_frames(error.__traceback__)  # which hold the model
        print_log(f'trial {trial.number}: {error}', logger='current', level=logging.WARNING)
    table = Run(folder).metrics
    values = [] if failure else MetricsTable(table).values(metric)
    find_best = min if study.direction.name == 'MINIMIZE' else max
    best = find_best(filter(math.isfinite, values), default=None)
    if best is None:
        state, shown = states.FAIL, f'failed: {failure or f"no {metric}"}'
    elif hook.has_stopped:
        trial.set_user_attr(BEST, best)
        state, shown = states.PRUNED, f'{metric} {best:.4g}, stopped early'
    else:
        state, shown = states.COMPLETE, f'{metric} {best:.4g}'
    study.tell(trial, best if state == states.COMPLETE else None, state)
    runner = None  # noqa: F841  # frees its memory before the next model is built
    if options.compile:  # a few trials with other settings would end compilation
        torch.compiler.reset()
    gc.collect()
    search = read_search(options, study, metric)
    write_text(options.work_dir / TABLE, search.format_csv())
    write_search(options.work_dir / PAGE, search)
    print(f'trial {trial.number}: {shown}', flush=True)
    if failure and search.best is None:
        raise failure


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
    kept = {name: vars(options)[name] for name in SHARED if name != 'amp'}
    words = format_words(TuneOptions(options.config, work_dir=options.work_dir / 'best', **kept))
    if options.amp:
        words += ['--amp'] if options.amp is True else ['--amp-dtype', str(options.amp)]
    given = (f'{key}={value}' for key, value in (options.cfg_options or {}).items())
    return ['colonnade', 'train', *words, '--cfg-options', *given]
