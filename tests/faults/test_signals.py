"""Signals to training and to other tools, their workers and torchrun."""
from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LAUNCH, NO_VAL, NO_WORKERS, ROOT, TWO_PROCESSES, config
from helpers.independent_processes import run_independently
from helpers.interrupted_runs import Runs, run, start
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.config import Config
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.optim import OptimWrapper
from torch import nn
from torch.optim import SGD
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

import colonnade
from colonnade.engine.runner import seeding
from colonnade.engine.runner.loops import SeededIterationLoop
from colonnade.engine.runner.seeding import MODEL, Seed, SeededBatches, build_endless_loader
from colonnade.engine.runner.signal_handling import (SIGNALS, StopOnSignal, handle_signals,
                                                     start_worker)
from colonnade.tools.command_line import handle_ctrl_c
from colonnade.tools.train import build_resume_command, describe_saved_state


@pytest.fixture
def runs(shapes: Path, tmp_path: Path) -> Runs:
    return Runs(tmp_path, shapes)


@pytest.mark.parametrize('words, expected', [
    (['tools/train.py', 'a b.py'], "colonnade train 'a b.py' --resume"),
    (['colonnade train', 'a.py', '--resume'], 'colonnade train a.py --resume'),
    (['t.py', 'a.py', '--res', 'x.pth', '--fsdp'], 'colonnade train a.py --fsdp --resume'),
    (['t.py', '--load-from', 'x.pth', '--new-classes', 'a.py'], 'colonnade train a.py --resume'),
    (['a b/t.py', '--load-from=x', 'a.py'], 'colonnade train a.py --resume'),
])
def test_resume_command(words: list[str], expected: str) -> None:
    assert build_resume_command(words) == expected


@pytest.mark.parametrize('last, best, has_ended, expected', [
    ('', '', True, 'nothing was saved'),
    ('', 'best.pth', True, 'the best checkpoint is best.pth'),
    ('a.pth', '', False, 'progress since a.pth is lost; go on'),
    ('a.pth', 'best.pth', True, 'training had already ended, and the last checkpoint is a.pth'),
])
def test_describe_saved_state(last: str, best: str, has_ended: bool, expected: str) -> None:
    assert describe_saved_state(last, best, has_ended, 'go on') == expected


def wait_for_signals(ready: Any) -> None:
    """Sleep as a worker until it is ended."""
    start_worker(None, 0)
    ready.set()
    time.sleep(60)


def test_worker_ignores_signals_of_others() -> None:
    fork = multiprocessing.get_context('fork')
    ready = fork.Event()
    worker = fork.Process(target=wait_for_signals, args=(ready, ), daemon=True)
    worker.start()
    assert ready.wait(60)
    for number in SIGNALS:  # from another process, as a terminal's or Slurm's
        subprocess.run(['kill', f'-{int(number)}', str(worker.pid)], check=True)
    worker.join(0.3)
    assert worker.is_alive()
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0


class OfWorkers(Dataset):
    """Samples that are the process that reads them."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_workers_of_iteration_loop_ignore_signals() -> None:
    loader, runner = DataLoader(
        OfWorkers(), num_workers=1), SimpleNamespace(
            visualizer=None, hooks=[])
    runner.train_loop, runner.val_loop = SeededIterationLoop(runner, loader, max_iters=9), None
    hook = StopOnSignal()
    hook.before_train(runner)
    hook.restore_handlers()
    runner.train_loop.batches.start(7, 0, skip=0)
    batches = runner.train_loop.dataloader_iterator
    worker = int(next(batches))
    subprocess.run(['kill', str(worker)], check=True)
    assert [int(next(batches)) for _ in range(8)] == [worker] * 8


def test_evaluation_within_step_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    model, hook, stopped = nn.Linear(1, 1), StopOnSignal(), []
    wrapper = OptimWrapper(SGD(model.parameters(), lr=0.1), accumulative_counts=2)
    loop = SimpleNamespace(dataloader=[0, 0])
    runner = SimpleNamespace(optim_wrapper=wrapper, model=model, hooks=[], val_loop=loop)
    monkeypatch.setattr(hook, 'stop', stopped.append)
    hook.before_val_epoch(runner)
    hook.signal = signal.SIGTERM
    for expected in ([], [runner]):
        wrapper.update_params(model(torch.ones(1)))
        hook.after_val_iter(runner, 0)
        assert stopped == expected


@pytest.mark.parametrize('signalled', [False, True])
def test_validation_does_not_wait(signalled: bool, tmp_path: Path) -> None:
    command = [ROOT / 'tests/helpers/validating_processes.py', *['signal'] * signalled]
    ended = run_independently(command, command, out=tmp_path, timeout=60)
    assert [each.status for each in ended] == [0, 0], ended
    assert [each.printed
            for each in ended] == ['stopped by 15 in batch 4\n', 'stopped by 15 in batch 2\n'
                                   ] if signalled else ['all batches\n'] * 2


def test_signal_after_training(capfd: pytest.CaptureFixture) -> None:
    loop = SimpleNamespace(dataloader=DataLoader([0]))
    runner = SimpleNamespace(
        train_loop=loop, val_loop=None, hooks=[], register_hook=lambda hook: None)
    with handle_signals(runner) as hook:
        hook.before_train(runner)
        hook.after_train(runner)
        os.kill(os.getpid(), signal.SIGINT)
        said = capfd.readouterr().err
        assert 'SIGINT: training has ended, and its last files are being written; press' in said
        assert 'training stops' not in said
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signal_without_checkpoints(capfd: pytest.CaptureFixture) -> None:
    hook = StopOnSignal()
    hook.receive(signal.SIGTERM, None)
    assert 'SIGTERM: training stops, and its config saves no state; press' in capfd.readouterr().err


def test_ctrl_c_while_config_is_formatted(monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:

    @handle_ctrl_c('train')
    def lay_out() -> str:
        return str(Config(dict(a=1)).pretty_text)

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', stop)
    with pytest.raises(SystemExit) as ended:
        lay_out()
    assert ended.value.code == 130 and capsys.readouterr().err == '\ntrain: stopped\n'
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda *_, **__: 1 / 0)
    with pytest.raises(SyntaxError):
        lay_out()


class Sized(list):
    """A dataset of upright and wide images."""

    def get_data_info(self, index: int) -> dict[str, int]:
        return dict(width=1, height=index % 3)


@pytest.mark.parametrize('endless, sampler, kind', [
    (True, InfiniteSampler, BatchSampler),
    (True, DefaultSampler, BatchSampler),
    (True, InfiniteSampler, AspectRatioBatchSampler),
    (False, DefaultSampler, AspectRatioBatchSampler),
])
def test_resumed_batches(endless: bool, sampler: type, kind: type) -> None:

    def batches(iteration: int, skip: int) -> list[tuple[Any, ...]]:
        made = SeededBatches(
            kind(sampler(Sized(range(11)), seed=4), 2, drop_last=False), endless=endless)
        made.start(7, iteration, skip=skip)
        return [(batch.indices, batch.seed) for batch in islice(made, 5 if skip else 20)]

    whole = batches(0, 0)
    assert len(whole) == (20 if endless else 6)
    for at in (1, 4) if not endless else (1, 4, 6, 13):
        rest = batches(at, at)
        assert rest == whole[at:at + 5] and rest


class Global:
    """A sampler that uses global generators."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(100):
            yield int(np.random.choice(50)) + 50 * int(torch.randint(50, ())) + random.randrange(50)


def test_resumed_global_sampler() -> None:

    def batches(at: int) -> list[tuple[Any, ...]]:
        made, found = SeededBatches(BatchSampler(Global(), 2, False), endless=True), []
        made.start(7, at, skip=at)
        for batch in islice(made, 8 - at):
            found.append((batch.indices, batch.seed))
            Seed(7, 0, batch.seed.iteration, MODEL).seed_generators()
        return found

    whole = batches(0)
    assert batches(3) == whole[3:] and len({str(indices) for indices, _ in whole}) == 8


def test_processes_split_global_order(monkeypatch: pytest.MonkeyPatch) -> None:

    class Shuffled(Sampler):

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def __iter__(self) -> Iterator[int]:
            order = list(range(12))
            random.shuffle(order)
            yield from order[self.rank::2]

        def __len__(self) -> int:
            return 6

    shown = []
    for rank in range(2):
        monkeypatch.setattr(seeding, 'get_rank', lambda rank=rank: rank)
        batches = SeededBatches(BatchSampler(Shuffled(rank), 2, False), endless=False)
        batches.start(7, 0, skip=0)
        shown += [index for batch in batches for index in batch.indices]
    assert sorted(shown) == list(range(12))


def test_training_set_smaller_than_batch() -> None:
    empty = SeededBatches(BatchSampler(DefaultSampler([1]), 2, drop_last=True), endless=True)
    with pytest.raises(ValueError, match='fewer images than a batch'):
        next(iter(empty))


@pytest.mark.parametrize('sampler', [DefaultSampler, InfiniteSampler])
@pytest.mark.parametrize('kind', [BatchSampler, AspectRatioBatchSampler])
def test_hook_reads_data_of_endless_loader(sampler: type, kind: type) -> None:

    def drawn(hook: bool) -> list[tuple[int, ...]]:
        data = Sized(range(11))
        loader = DataLoader(data, batch_sampler=kind(sampler(data, seed=4), 2, drop_last=False))
        endless, batches = build_endless_loader(loader)
        assert batches is not None and len(endless) == len(loader) == 6
        batches.start(7, 0, skip=0)
        found, own = [], iter(endless)
        for step in range(20):
            found.append(tuple(next(own).tolist()))
            if hook and step == 3:
                assert len(list(islice(loader, 9))) == (6 if sampler is DefaultSampler else 9)
        return found

    assert drawn(True) == drawn(False)


def test_seeded_batches_are_copied() -> None:
    batches = SeededBatches(BatchSampler(DefaultSampler(range(4), seed=1), 2, False), endless=False)
    for made in (copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))):
        assert list(made) == list(batches) and made.batch_size == 2


@pytest.mark.slow
def test_second_ctrl_c(runs: Runs, run_tool: Callable, tmp_path: Path) -> None:
    runs.config('sem_fpn', name='SIGINT', iteration=1, times=2)
    with pytest.raises(SystemExit) as end:
        run_tool('train', *runs.words('run', *NO_VAL, *NO_WORKERS[:1]))
    assert end.value.code == 130 and not list((tmp_path / 'run').glob('*.pth'))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_ctrl_c_in_notebook(runs: Runs) -> None:
    path = runs.config('sem_fpn', name='SIGINT', iteration=1)
    options = {'train_cfg.max_iters': 2, 'train_dataloader.num_workers': 0,
               'train_dataloader.persistent_workers': False}  # yapf: disable
    with pytest.raises(KeyboardInterrupt):
        colonnade.train(
            path,
            data_root=runs.shapes / 'ade',
            work_dir=runs.folder / 'run',
            report=False,
            cfg_options=options)


@pytest.mark.slow
def test_signal_to_training_without_checkpoints(runs: Runs, run_tool: Callable, tmp_path: Path,
                                                capfd: pytest.CaptureFixture) -> None:
    runs.config('sem_fpn', name='SIGTERM', iteration=1)
    words = [word for word in runs.words('run', *NO_VAL, *NO_WORKERS[:1])
             if 'checkpoint.interval' not in word]  # yapf: disable
    with pytest.raises(SystemExit) as end:
        run_tool('train', *words, 'default_hooks.checkpoint=None')
    assert end.value.code == 128 + signal.SIGTERM
    assert 'nothing was saved' in capfd.readouterr().err
    assert not list((tmp_path / 'run').glob('*.pth'))


WORKERS = ['train_dataloader.num_workers=1', 'train_dataloader.persistent_workers=True']


@pytest.mark.slow
def test_torchrun_forwards_signal(runs: Runs) -> None:
    runs.config('sem_fpn')
    words = runs.words('run', *NO_VAL, *WORKERS, iters=500, start=('--launcher', 'pytorch'))
    seldom = 'default_hooks.checkpoint.interval=500'
    program = start(*LAUNCH, '--max-restarts', 2, 'tools/train.py', *words, seldom, **TWO_PROCESSES)
    assert program.stdout is not None
    printed = ''
    for line in program.stdout:
        printed += line
        if 'Iter(train) [  2/500]' in line:
            program.terminate()
            break
    printed += program.communicate(timeout=300)[0]
    assert program.returncode and printed.count('stopped by SIGTERM at iteration') == 1, printed
    assert (runs.folder / 'run/interrupted.pth').is_file()
    assert 'is killed by signal' not in printed  # a worker


@pytest.mark.slow
def test_torchrun_restarts_after_signal(runs: Runs, tmp_path: Path) -> None:
    runs.config('sem_fpn', name='SIGTERM', iteration=3, rank=1)
    resuming = ('--launcher', 'pytorch', '--resume')
    words = runs.words('run', *NO_VAL, *NO_WORKERS[:1], iters=6, start=resuming)
    status, printed = run(
        *LAUNCH,
        '--max-restarts',
        1,
        'tools/train.py',
        *words,
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE='1',
        **TWO_PROCESSES)
    assert not status and 'stopped by SIGTERM at iteration 3 of 6' in printed, printed[-3000:]
    assert printed.count('Iter(train) [4/6]') == 1
    assert (tmp_path / 'run/iter_6.pth').is_file()


#: a tool -> what is there once it is at work
MADE = dict(predict='predicted', make_shapes='.shapes-*')


@pytest.mark.slow
@pytest.mark.parametrize('tool', ['test', *MADE])
def test_ctrl_c_ends_tools(tool: str, runs: Runs, trained: Path) -> None:
    folder, data, checkpoint = runs.folder, runs.shapes / 'ade', trained / 'iter_2.pth'
    path = runs.config('sem_fpn', averaging=False, name='SIGINT', iteration=0, group=True)
    arguments = dict(
        test=(path, checkpoint, '--data-root', data, '--work-dir', folder / 'test', '--out',
              folder / 'metrics.json'),
        predict=(config('sem_fpn'), checkpoint, data / 'images', '--out', folder / 'predicted'),
        make_shapes=(folder / 'shapes', '--num-train', 100000))
    program = start(f'tools/{tool}.py', *arguments[tool])
    if tool in MADE:  # the test sends the signal itself
        while program.poll() is None and not list(folder.glob(MADE[tool])):
            time.sleep(0.02)
        os.killpg(program.pid, signal.SIGINT)
    printed = program.communicate(timeout=300)[0]
    assert program.returncode == 130 and 'Traceback' not in printed, printed[-3000:]
    assert f'\n{tool.replace("_", "-")}: stopped' in printed
    assert not {'metrics.json', 'shapes'} & {path.name for path in folder.iterdir()}
    assert not list(folder.glob('.shapes-*'))
