"""Trainings that are killed by ``kill -9`` and resume from the latest intact checkpoint."""
from __future__ import annotations

import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LAYOUTS, NO_VAL, NO_WORKERS, SHORT, config, latest_log
from test_work_dir import TINY

from colonnade.weights.checkpoint_files import SUMS

fork = get_context('fork')
LENGTH = 12  # iterations of the run that is killed at random
KILLS = 8


@pytest.fixture
def train(run_tool: Callable, shapes: Path, tmp_path: Path) -> Callable[..., None]:
    """Train a small segmenter so many iterations in a work dir."""

    def run(name: str, length: int, *arguments: Any, own: str = '', options: list[str] = SHORT[3:],
            ) -> None:  # yapf: disable
        path = tmp_path / 'own.py'
        path.write_text(f'_base_ = {str(config("sem_fpn"))!r}\n{TINY}{own}')
        run_tool('train', path, '--data-root', shapes / LAYOUTS['sem_fpn'], '--work-dir',
                 tmp_path / name, '--no-report', *arguments, '--cfg-options',
                 f'train_cfg.max_iters={length}', 'randomness.seed=0', *options, *NO_VAL,
                 *NO_WORKERS[:1])

    return run


def in_a_process(log: Path, work: Callable, *arguments: Any, **options: Any) -> Any:
    """Start a fork that works, and prints to a file."""

    def run() -> None:
        sys.stdout = sys.stderr = log.open('a', buffering=1)
        work(*arguments, **options)

    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        process = fork.Process(target=run)
        process.start()
    return process


def wait_for_change(file: Path, process: Any) -> None:
    """Wait until a file has another text, or a process ends."""

    def text() -> str:
        return file.read_text() if file.is_file() else ''

    before = text()
    while process.is_alive() and text() == before:
        time.sleep(0.005)


def assert_same(first: Path, second: Path) -> None:
    """Compare weights and the optimizer's state to the bit."""
    one, other = (torch.load(path, weights_only=False) for path in (first, second))
    for key, value in one['state_dict'].items():
        assert torch.equal(value, other['state_dict'][key]), key
    states = [content['optimizer']['state'] for content in (one, other)]
    for index, state in states[0].items():
        for key, value in state.items():
            assert torch.equal(value, states[1][index][key]), (index, key)


def test_resume_skips_damaged_checkpoint(trained: Path, run_tool: Callable, shapes: Path) -> None:
    newest = trained / 'iter_2.pth'
    os.truncate(newest, newest.stat().st_size // 2)
    run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', trained,
             '--resume', *SHORT, *NO_WORKERS)
    log = latest_log(trained)
    assert 'Iter(train) [2/2]' in log and 'Iter(train) [1/2]' not in log
    assert f'{newest} is damaged or was altered' in log
    assert f'Training resumes from the one before, {trained}/iter_1.pth' in log
    assert (trained / 'last_checkpoint').read_text() == str(newest)
    assert SUMS in {path.name for path in trained.iterdir()}


@pytest.mark.slow
def test_killed_at_random(train: Callable, tmp_path: Path) -> None:
    seed = int(os.environ.get('COLONNADE_SEED', random.randrange(10**6)))
    print(f'seed {seed}: COLONNADE_SEED repeats it')
    moments = random.Random(seed)
    options = [*SHORT[3:], 'default_hooks.checkpoint.max_keep_ckpts=2']
    started = time.monotonic()
    whole = in_a_process(tmp_path / 'printed.txt', train, 'whole', LENGTH, options=options)
    whole.join()
    assert whole.exitcode == 0, (tmp_path / 'printed.txt').read_text()[-3000:]
    seconds, kills, starts = time.monotonic() - started, 0, 0
    while True:
        starts += 1
        process = in_a_process(
            tmp_path / 'printed.txt', train, 'killed', LENGTH, '--resume', options=options)
        if kills < KILLS:
            if moments.random() < 0.7:  # not before it has saved something
                wait_for_change(tmp_path / 'killed/last_checkpoint', process)
            process.join(moments.uniform(0, 2 * seconds / LENGTH))
        else:
            process.join()
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        kills += 1
    print(f'{kills} kills, {starts} starts')
    assert process.exitcode == 0, (tmp_path / 'printed.txt').read_text()[-3000:]
    assert_same(tmp_path / f'whole/iter_{LENGTH}.pth', tmp_path / f'killed/iter_{LENGTH}.pth')
    assert not list((tmp_path / 'killed').glob('.*'))
