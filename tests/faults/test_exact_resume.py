"""Interrupted and resumed runs give the same result as uninterrupted ones."""
from __future__ import annotations

import gc
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_VAL, NO_WORKERS, latest_log, run_two
from helpers.interrupted_runs import Runs, assert_same, evaluations, run


@pytest.fixture
def runs(shapes: Path, tmp_path: Path) -> Runs:
    return Runs(tmp_path, shapes)


@pytest.mark.parametrize('head, settings', [
    pytest.param('sem_fpn', (), marks=pytest.mark.slow),
    ('eomt', ('model.backbone.arch.depth=3', 'model.backbone.num_query_blocks=2')),
    pytest.param('pmt', ('model.panoptic_head.num_blocks=2', ), marks=pytest.mark.slow),
])
def test_resume_is_exact(head: str, settings: tuple[str, ...], runs: Runs, run_tool: Callable,
                         tmp_path: Path) -> None:
    """Masks of EoMT and PMT are drawn at random in iterations 3 and 5."""
    runs.config(head)
    options = (*NO_VAL, *NO_WORKERS[:1], 'randomness.seed=None',
               'default_hooks.checkpoint.max_keep_ckpts=-1', *settings)
    words = dict(head=head, iters=8)
    run_tool('train', *runs.words('whole', *options, **words))
    start = ('--resume', tmp_path / 'whole/iter_4.pth')
    run_tool('train', *runs.words('rest', *options, start=start, **words))
    assert_same(tmp_path / 'whole/iter_8.pth', tmp_path / 'rest/iter_8.pth')
    assert 'not match an uninterrupted run' not in latest_log(tmp_path / 'rest')


@pytest.mark.slow
def test_resume_of_earlier_version(runs: Runs, trained: Path, run_tool: Callable) -> None:
    path = trained / 'iter_2.pth'
    content = torch.load(path, weights_only=False)
    for kept in ('runtime_info', 'resumed_keys'):
        del content['message_hub'][kept]['seeds_of_iterations']
    torch.save(content, runs.folder / 'old.pth')
    runs.config('sem_fpn', averaging=False)
    start = ('--resume', runs.folder / 'old.pth')
    run_tool('train', *runs.words('rest', *NO_VAL, *NO_WORKERS[:1], iters=3, start=start))
    log = latest_log(runs.folder / 'rest')
    assert 'not match an uninterrupted run' in log and 'an earlier version of colonnade' in log


def test_signal_saves_and_run_resumes(runs: Runs, run_tool: Callable, tmp_path: Path,
                                      capfd: pytest.CaptureFixture) -> None:
    options = (*NO_VAL, *NO_WORKERS[:1], 'optim_wrapper.accumulative_counts=2',
               'default_hooks.checkpoint.interval=3')
    runs.config('sem_fpn')
    run_tool('train', *runs.words('whole', *options, iters=6))
    before = signal.getsignal(signal.SIGTERM)
    runs.config('sem_fpn', name='SIGTERM', iteration=1)
    with pytest.raises(SystemExit) as end:
        run_tool('train', *runs.words('run', *options, iters=6))
    assert end.value.code == 75 and signal.getsignal(signal.SIGTERM) is before
    saved = tmp_path / 'run/interrupted.pth'
    assert (tmp_path / 'run/last_checkpoint').read_text() == str(saved)
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f'train: stopped by SIGTERM at iteration 2 of 6, saved {saved}; resume')
    assert line.endswith('--resume')
    run_tool('train', *runs.words('run', *options, start=('--resume', ), iters=6))
    assert_same(tmp_path / 'whole/iter_6.pth', tmp_path / 'run/iter_6.pth')
    names = {path.name for path in (tmp_path / 'whole').glob('iter_*')}
    assert names == {'iter_4.pth', 'iter_6.pth'}  # 3 is within a step


@pytest.mark.slow
@pytest.mark.parametrize('accumulate', [1, 3])
def test_interrupted_evaluation_is_repeated(accumulate: int, runs: Runs, run_tool: Callable,
                                            tmp_path: Path) -> None:
    options = (*NO_WORKERS, 'default_hooks.checkpoint.interval=4',
               f'optim_wrapper.accumulative_counts={accumulate}')
    runs.config('sem_fpn')
    run_tool('train', *runs.words('whole', *options))
    runs.config('sem_fpn', name='SIGUSR1', iteration=2, evaluating=True)
    with pytest.raises(SystemExit) as end:
        run_tool('train', *runs.words('run', *options))
    assert end.value.code == 75 and (tmp_path / 'run/interrupted.pth').is_file()
    run_tool('train', *runs.words('run', *options, start=('--resume', )))
    assert_same(tmp_path / 'whole/iter_4.pth', tmp_path / 'run/iter_4.pth')
    assert evaluations(tmp_path / 'run') == evaluations(tmp_path / 'whole')


WORKERS = ['train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True']
EPOCHS = """
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=2, val_interval=1)
train_dataloader = dict(
    sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'))
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1, save_best=None))
"""


@pytest.mark.slow
def test_ctrl_c_within_epoch(runs: Runs, tmp_path: Path) -> None:
    accumulate = 'optim_wrapper.accumulative_counts=4'  # an epoch has 6 iterations
    words = dict(head='mask_rcnn', iters=0)
    runs.config('mask_rcnn', EPOCHS)
    status, printed = run('tools/train.py', *runs.words('whole', *NO_WORKERS, accumulate, **words))
    assert not status, printed[-3000:]
    runs.config('mask_rcnn', EPOCHS, name='SIGINT', iteration=7, group=True)
    options = (*WORKERS, accumulate, 'default_hooks.checkpoint.save_best=None')
    status, printed = run('tools/train.py', *runs.words('run', *options, **words))
    assert status == 75 and 'Traceback' not in printed, printed[-3000:]
    assert 'stopped by SIGINT at iteration 8 of 12' in printed
    go_on = shlex.split(
        printed.strip().splitlines()[-1].partition('resume with: colonnade train ')[2])
    status, printed = run('tools/train.py', *go_on)
    assert not status, printed[-3000:]
    assert_same(tmp_path / 'whole/epoch_2.pth', tmp_path / 'run/epoch_2.pth')
    assert evaluations(tmp_path / 'run') == evaluations(tmp_path / 'whole')


TOGETHER = ('--launcher', 'pytorch')


def printed_by_a_failure(*command: Any, out: Path) -> str:
    """Return the output of two processes that fail."""
    try:
        run_two(*command, out=out)
    except AssertionError as error:
        printed = str(error)
    gc.collect()  # frees the store, which forks could not end
    return printed


@pytest.mark.slow
@pytest.mark.parametrize('options', [(), ('--fsdp', '--checkpoint-format', 'sharded')])
@pytest.mark.parametrize('evaluating', [False, True])
def test_two_processes_stop_together(options: tuple[str, ...], evaluating: bool, runs: Runs,
                                     tmp_path: Path) -> None:
    both = ('default_hooks.checkpoint.interval=4', *NO_WORKERS)
    runs.config('sem_fpn')
    run_two(
        'tools/train.py', *runs.words('whole', *both, start=(*TOGETHER, *options)), out=tmp_path)
    runs.config('sem_fpn', name='SIGTERM', iteration=2, rank=1, evaluating=evaluating)
    printed = printed_by_a_failure(
        'tools/train.py', *runs.words('run', *both, start=(*TOGETHER, *options)), out=tmp_path)
    assert 'stopped by SIGTERM at iteration 2 of 4' in printed and 'Traceback' not in printed
    assert (tmp_path / 'run/interrupted.pth').exists()
    log = run_two(
        'tools/train.py',
        *runs.words('run', *both, start=(*TOGETHER, *options, '--resume')),
        out=tmp_path)
    assert 'Iter(train) [3/4]' in log and 'Iter(train) [2/4]' not in log
    assert_same(tmp_path / 'whole/iter_4.pth', tmp_path / 'run/iter_4.pth')
    assert evaluations(tmp_path / 'run') == evaluations(tmp_path / 'whole')
