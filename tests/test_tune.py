"""Search of settings: ranges, trials, pruning, failures and interrupted searches."""
from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from conftest import NO_WORKERS, config, latest_log
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend

from colonnade.common.errors import UserError
from colonnade.configs import find_config
from colonnade.recipes.tuning import (JOURNAL, PAGE, RATE, TABLE, get_setting, parse_range,
                                      parse_ranges)
from colonnade.settings.reading import read_config

DROP = 'model.backbone.drop_path_rate'
SHORT = [
    '--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=1',
    'default_hooks.checkpoint.interval=1', 'default_hooks.logger.interval=1',
    'train_dataloader.batch_size=2', *NO_WORKERS[:2]
]


@pytest.mark.parametrize('text, present, expected', [
    ('1e-5:1e-3:log', 1e-4, FloatDistribution(1e-5, 1e-3, log=True)),
    ('0:1', 0.1, FloatDistribution(0, 1)),
    ('1:12', 3, IntDistribution(1, 12)),
    ([0.1, 0.2], 0, CategoricalDistribution((0.1, 0.2))),
])
def test_ranges(text: Any, present: float, expected: Any) -> None:
    assert parse_range('key', text, present) == expected


@pytest.mark.parametrize('text',
                         ['1', '2:1', '0:1:log', '1:2:square', 'a:b', 'low', ':', '0:1e999', 3])
def test_wrong_ranges(text: Any) -> None:
    with pytest.raises(UserError, match=f'--search key expects LOW:HIGH.* got {text}'):
        parse_range('key', text)


def test_default_ranges() -> None:
    cfg = read_config(find_config('vitdet/vit_base_patch16_224_mae_100ep_coco_lsj'))
    ranges = parse_ranges(None, cfg)
    assert list(ranges) == [RATE, 'optim_wrapper.paramwise_cfg.layer_decay_rate', DROP]
    assert ranges[RATE].low < get_setting(cfg, RATE) < ranges[RATE].high
    assert get_setting(cfg, 'param_scheduler.0.end') and 'param_scheduler.9.end' not in cfg
    assert list(parse_ranges({'param_scheduler.0.end': '1:10'}, cfg)) == ['param_scheduler.0.end']
    with pytest.raises(UserError, match='--search model.nothing: the config has no such setting'):
        parse_ranges({'model.nothing': '1:2'}, cfg)


TRAINING = ('--tune', 'head', '--patience', 3)  # options of colonnade train


@pytest.fixture
def tune(run_tool: Callable, shapes: Path, tmp_path: Path) -> Callable[..., None]:
    """Search in ``tmp_path / 'search'``."""

    def run(*options: object, more: tuple[str, ...] = ()) -> None:
        run_tool('tune', config('sem_fpn'), '--work-dir', tmp_path / 'search', '--data-root',
                 shapes / 'ade', *options, *SHORT, *more)  # yapf: disable

    return run


def read_table(folder: Path) -> list[dict[str, str]]:
    with (folder / TABLE).open() as file:
        return list(csv.DictReader(file))


def open_journal(folder: Path) -> optuna.Study:
    folder.mkdir(exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return optuna.create_study(
        study_name='colonnade', storage=storage, direction='maximize', load_if_exists=True)


@pytest.mark.usefixtures('no_layout')
def test_trials(tune: Callable, shapes: Path, tmp_path: Path,
                capsys: pytest.CaptureFixture[str]) -> None:
    tune('--trials', 1, *TRAINING)
    printed = capsys.readouterr().out
    assert f'trial 0: {RATE}=0.002 {DROP}=0\n' in printed  # those of the config
    words = [
        *map(str, TRAINING), f'--work-dir {tmp_path / "search/best"}',
        f'--data-root {shapes / "ade"}', *SHORT, f'{RATE}=0.002 {DROP}=0'
    ]
    assert f'{" ".join(words)}\n' in printed
    with pytest.raises(SystemExit, match='has a search already: pass --resume'):
        tune('--trials', 2)
    with pytest.raises(SystemExit, match='has a search with ranges .* pass the same options'):
        tune('--trials', 2, '--resume', *TRAINING, '--search', f'{DROP}=0:0.1')
    with pytest.raises(SystemExit, match='has a search with tune head, not None: pass the same'):
        tune('--trials', 2, '--resume')

    # Four trials that were much better: the median prunes the next one.
    folder = tmp_path / 'search'
    study = open_journal(folder)
    first, = study.trials
    for value in (96., 97., 98., 99.):
        study.add_trial(
            optuna.trial.create_trial(
                params=first.params,
                distributions=first.distributions,
                intermediate_values={
                    1: value,
                    2: value
                },
                value=value))
    tune('--trials', 6, '--resume', *TRAINING)
    assert 'stopped early\n' in capsys.readouterr().out
    rows = read_table(folder)
    assert [row['trial'] for row in rows] == ['4', '3', '2', '1', '0', '5']
    assert [row['state'] for row in rows] == ['complete'] * 5 + ['pruned']
    assert (rows[-1]['iterations'], rows[0]['mIoU']) == ('1', '99.0')
    assert sorted(path.name for path in folder.glob('trial_5/iter_*')) == ['iter_1.pth']
    assert 'Trial 4 has the highest mIoU: 99.' in (folder / PAGE).read_text()
    assert (folder / 'trial_0/record/run.json').is_file()


@pytest.mark.slow
@pytest.mark.usefixtures('no_layout')
def test_interrupted_trial_continues(tune: Callable, run_tool: Callable, shapes: Path,
                                     tmp_path: Path) -> None:
    folder = tmp_path / 'search'
    ranges = {DROP: CategoricalDistribution((0.1, 0.3))}
    study = open_journal(folder)
    value = study.ask(ranges).params[DROP]
    run_tool('train', config('sem_fpn'), '--work-dir', folder / 'trial_0', '--data-root',
             shapes / 'ade', *SHORT, f'{DROP}={value}', 'train_cfg.max_iters=1')  # yapf: disable
    tune('--trials', 1, '--resume', '--search', f'{DROP}=0.1,0.3')
    row, = read_table(folder)
    assert (row['state'], row['iterations'], row[DROP]) == ('complete', '2', str(value))
    assert 'resumed' in latest_log(folder / 'trial_0')


@pytest.mark.slow
@pytest.mark.usefixtures('no_layout')
def test_failed_trials(tune: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='training stops at iteration'):  # the first of all
        tune('--trials', 1, '--search', f'{RATE}=1e30,1e35', '--no-pruning',
             more=('train_cfg.max_iters=9', 'train_cfg.val_interval=9'))  # yapf: disable
    assert [row['state'] for row in read_table(tmp_path / 'search')] == ['failed']
    (tmp_path / 'search').rename(tmp_path / 'earlier')

    # Others are listed, and the search continues. The config's value comes first, others are wrong.
    tune('--trials', 2, '--search', f'{DROP}=0,5.0,6.0,7.0,8.0')
    assert 'trial 1: failed: drop_path_rate must be in [0, 1), got ' in capsys.readouterr().out
    assert [row['state'] for row in read_table(tmp_path / 'search')] == ['complete', 'failed']
    (tmp_path / f'search/{JOURNAL}').unlink()
    with pytest.raises(SystemExit, match='has trials of another search, but no optuna_journal.log'):
        tune('--trials', 1)


def test_wrong_options(tune: Callable) -> None:
    with pytest.raises(SystemExit, match='--trials must be at least 1, got 0'):
        tune('--trials', 0)
