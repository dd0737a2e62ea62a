"""A process that dies, hangs or lacks memory ends its job, and the log says why."""
from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import NO_VAL, NO_WORKERS, ROOT, SHORT, config, latest_log, no_dump_of_forks, run_two
from helpers.independent_processes import Ended, run_independently, train
from mmengine.registry import MODELS
from torch.distributed import TCPStore

from colonnade.common.errors import UserCodeError
from colonnade.engine import watchdog
from colonnade.engine.distributed.process_consistency import (format_differences,
                                                              get_relevant_settings)
from colonnade.settings.reading import read_config

LIMIT = 20  # seconds; the default is 1800
OPTIONS = [
    *SHORT[:1], 'train_cfg.max_iters=6', 'default_hooks.checkpoint.interval=100',
    'default_hooks.logger.interval=1', 'train_dataloader.batch_size=2',
    'optim_wrapper.clip_grad=None'
]


def faulty(tmp_path: Path,
           *,
           hook: dict | None = None,
           transform: dict | None = None,
           loader: str = 'train_dataloader') -> Path:
    """A short recipe with a fault."""
    path = tmp_path / 'faulty.py'
    path.write_text(f'_base_ = {str(config("sem_fpn"))!r}\n'
                    "custom_imports = dict(imports=['helpers.process_faults'])\n"
                    f'custom_hooks = {[dict(hook, type="ProcessFault")] if hook else []}\n' +
                    (f'{loader} = dict(dataset=dict(pipeline=['
                     f'dict({transform}, type="SampleFault"), '
                     f'*_base_.{loader}.dataset.pipeline]))\n' if transform else ''))
    return path


def train_two(path: Path,
              shapes: Path,
              tmp_path: Path,
              *options: str,
              timeout: float = 100) -> list[Ended]:
    """Train in two processes that nothing but we stop."""
    command = train(path, '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run',
                    '--hang-timeout', LIMIT, '--no-report', *OPTIONS, *options)  # yapf: disable
    return run_independently(command, command, out=tmp_path, timeout=timeout)


LOST = r'process {} \(pid \d+ on \S+\) has not responded for \d+ s: it was killed, stopped or'
FAILED = r'process {} \(pid \d+ on \S+\) failed: RuntimeError: {}'


@pytest.mark.slow
@pytest.mark.parametrize('fault, rank, expected', [
    ('kill', 1, LOST.format(1)),
    ('kill', 0, LOST.format(0)),
    ('stop', 1, LOST.format(1)),
    ('stop', 0, LOST.format(0)),
    ('fail', 1, FAILED.format(1, 'a fault of one process')),
    ('fail', 0, FAILED.format(0, 'a fault of one process')),
    ('memory', 1, FAILED.format(1, '.*can.t allocate memory')),
])
def test_crashed_process_ends_job(fault: str, rank: int, expected: str, shapes: Path,
                                  tmp_path: Path) -> None:
    ended = train_two(
        faulty(tmp_path, hook=dict(fault=fault, rank=rank)), shapes, tmp_path, *NO_WORKERS, *NO_VAL)
    statuses = [each.status for each in ended]
    status = dict(kill=-9, stop=None).get(fault, 1)  # a stopped process is left to the launcher
    assert statuses == [status if rank == own else 1 for own in (0, 1)]
    log = latest_log(tmp_path / 'run')
    assert len(re.findall(expected, log)) == 1
    assert re.search(expected, ended[1 - rank].printed)
    where = dict(fail=', in fail', memory=', in exhaust_memory').get(fault, '')
    assert ('Traceback' in log) == bool(where) and where in log


@pytest.mark.slow
@pytest.mark.parametrize('options', [(), ('--fsdp', )])
def test_error_while_saving_ends_job(options: tuple[str, ...], shapes: Path,
                                     tmp_path: Path) -> None:
    path = faulty(tmp_path, hook=dict(fault='fail', rank=0, iteration=-1))
    command = train(path, '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run',
                    '--no-report', *options, *OPTIONS, *NO_WORKERS, *NO_VAL,
                    'default_hooks.checkpoint.interval=2')  # yapf: disable
    ended = run_independently(command, command, out=tmp_path, timeout=60)
    assert [each.status for each in ended] == [1, 1]
    assert re.search(r'^train: process 0 \(.* failed: RuntimeError: a fault of one process$',
                     ended[1].printed, re.MULTILINE)  # yapf: disable
    assert 'in fail' in latest_log(tmp_path / 'run')


def test_raise_on_all_ranks(tmp_path: Path) -> None:
    command = [ROOT / 'tests/helpers/failing_processes.py']
    one, other = run_independently(command, command, out=tmp_path, timeout=60)
    assert one.status == other.status == 0, (one, other)
    for each in (one, other):
        for line in ('first disk', 'disk'):
            assert f'\n{line}: FileError [Errno 28] full' in f'\n{each.printed}'
    for line in ('bug: ProcessError process 1 failed:', 'both: ProcessError process 1 failed:'):
        assert line in one.printed
    assert one.printed.count('in break_down') == 2
    for line in ('bug: KeyError', 'both: KeyError', 'first: ProcessError process 0 failed:',
                 'check: UserError no such key'):
        assert line in other.printed
    assert other.printed.count('in break_down') == 1
    assert one.printed.count('the report lacks this evaluation') == 1
    for each in (one, other):
        assert each.printed.endswith('together: [0, 1]\n')


@pytest.mark.slow
@pytest.mark.parametrize('num_workers', [0, 1])
def test_hang_ends_job(num_workers: int, shapes: Path, tmp_path: Path) -> None:
    options = NO_WORKERS if num_workers == 0 else [
        'train_dataloader.num_workers=1', 'train_dataloader.persistent_workers=False'
    ]
    ended = train_two(
        faulty(tmp_path, transform=dict(fault='loop', count=7, rank=1)), shapes, tmp_path, *options,
        *NO_VAL)
    assert [each.status for each in ended] == [1, 1]
    assert re.search(
        rf'the run hangs: process 0 \(.*\) has waited for another process for {LIMIT} s',
        latest_log(tmp_path / 'run'))
    stacks, = (tmp_path / 'run').glob('*/stacks_of_process_1.txt')
    assert ('in loop' if num_workers == 0 else 'dataloader.py') in stacks.read_text()


def evaluation(path: Path, shapes: Path, tmp_path: Path, weights: str = 'model.pth') -> list:
    """The command line of an evaluation of four images, and the file of weights that it names."""
    model = MODELS.build(read_config(path).model)
    torch.save(model.state_dict(), tmp_path / weights)
    return [ROOT / 'tools/test.py', path, tmp_path / weights, '--launcher', 'pytorch',
            '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run', '--hang-timeout', LIMIT,
            '--cfg-options', 'test_dataloader.num_workers=0',
            'test_dataloader.persistent_workers=False']  # yapf: disable


def evaluate_by_two(path: Path, shapes: Path, tmp_path: Path) -> list[Ended]:
    """Evaluate in two processes that nothing but we stop."""
    command = evaluation(path, shapes, tmp_path)
    return run_independently(command, command, out=tmp_path, timeout=100)


@pytest.mark.slow
@pytest.mark.parametrize('fault, rank, expected', [
    ('kill', 1, LOST.format(1)),
    ('fail', 0, FAILED.format(0, 'a fault of one process')),
    ('loop', 1, r'the run hangs: process 0 \(.*\) has waited for another process for'),
])
def test_crashed_process_ends_evaluation(fault: str, rank: int, expected: str, shapes: Path,
                                         tmp_path: Path) -> None:
    path = faulty(tmp_path, hook=dict(fault=fault, rank=rank, iteration=2))
    ended = evaluate_by_two(path, shapes, tmp_path)
    of_faulty = -9 if fault == 'kill' else 1
    assert [each.status for each in ended] == [of_faulty if rank == own else 1 for own in (0, 1)]
    assert re.search(expected, latest_log(tmp_path / 'run'))
    assert re.search(expected, ended[1 - rank].printed)
    assert not list(tmp_path.glob('run/*/metrics.json'))


@pytest.mark.slow
def test_evaluation_refuses_different_checkpoints(shapes: Path, tmp_path: Path) -> None:
    commands = [evaluation(config('sem_fpn'), shapes, tmp_path, weights)
                for weights in ('one.pth', 'other.pth')]  # yapf: disable
    ended = run_independently(*commands, out=tmp_path)
    assert [each.status for each in ended] == [1, 1]
    for each in ended:
        assert re.search('test: process 1 .* evaluates weights that differ from those of process 0'
                         ' .*: '
                         '.*other.pth, not .*one.pth', each.printed)  # yapf: disable


def build_heartbeat(rank: int, port: int, path: Path) -> watchdog.Heartbeat:
    """Return the heartbeat of one of two processes that share a store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, 'get_rank', lambda: rank)
        store = TCPStore('127.0.0.1', port, is_master=False)
        store.set(str(rank), '0')
        return watchdog.Heartbeat(store, ['process 0', 'process 1'], 600, path)


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of a store in which no process has reported an end."""
    store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    store.set(watchdog.ENDED, '')
    yield store.port


def run_with_hanging_disk(port: int, folder: Path) -> None:
    """Run the second of two processes, whose disk hangs when the first one ends the job."""
    heartbeat = build_heartbeat(1, port, folder / 'log')
    os.mkfifo(heartbeat.stacks)
    heartbeat.thread.start()
    time.sleep(60)


@pytest.mark.slow
def test_hanging_disk_does_not_block_exit(port: int, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, 'GRACE', 1.)
    first = build_heartbeat(0, port, tmp_path / 'log')
    process = multiprocessing.get_context('fork').Process(
        target=run_with_hanging_disk, args=(port, tmp_path))
    with no_dump_of_forks():
        process.start()
    first.end_job('a fault')
    process.join(30)
    process.kill()
    assert process.exitcode == 1


def test_first_reason_is_kept(port: int, tmp_path: Path) -> None:
    log = tmp_path / 'log'
    own, other = build_heartbeat(0, port, log), build_heartbeat(1, port, log)
    assert own.find_lost(10) is None
    own.received[1] -= 11
    assert own.find_lost(10) == 1
    own.beats[1] = watchdog.LEFT
    assert own.find_lost(10) is None
    error = UserCodeError('a sample cannot be loaded')
    error.__cause__ = KeyError('theirs')
    other.thread.start()
    other.leave(error)
    own.end_job('another fault')
    assert own.reason == other.reason == \
        'process 1 failed: UserCodeError: a sample cannot be loaded'
    assert "KeyError: 'theirs'" in log.read_text() and 'another' not in log.read_text()


@pytest.mark.parametrize('limit', ['-1', 'nan'])
def test_hang_timeout_errors(limit: str, shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    with pytest.raises(SystemExit, match=f'train: --hang-timeout must be 0 or more, got {limit}'):
        run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', tmp_path,
                 '--hang-timeout', limit)  # yapf: disable


def test_process_consistency(tmp_path: Path) -> None:
    for name, content in (('one', b'1'), ('copy', b'1'), ('other', b'2')):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'rest.pth').write_bytes(content)
    printed = run_two('tests/helpers/consistent_processes.py', tmp_path, out=tmp_path)
    assert printed.count('the same file: the same') == 2
    assert printed.count('equal shards: the same') == 2
    other = ('other shards: process 1 .* evaluates weights that differ from those of process 0 .*: '
             '.*other, not .*one')  # yapf: disable
    assert len(re.findall(other, printed)) == 2
    assert printed.count('the same URL: the same') == 2
    assert len(re.findall('another URL: .*: https://b/x.pth, not https://a/x.pth', printed)) == 2
    assert printed.count('data of a backend: the same') == 2
    assert len(re.findall('another number: .* different data .*: 2 images in', printed)) == 2
    assert len(re.findall('files elsewhere: .* refers to 1 file outside of /data', printed)) == 2
    assert 'process 0 has looked 1 times' in printed and 'process 1 has looked 0 times' in printed


@pytest.mark.slow
@pytest.mark.parametrize('option, expected', [
    ('train_dataloader.batch_size=4',
     'process 1 .* different config than process 0 .*: train_dataloader.batch_size is 4 there'),
    ('data',
     'process 1 .* different data from process 0 .*: 11 images in train_dataloader, not 12'),
    ('label map',
     'process 1 .* different data .*: the content of .*annotations/training differs from '),
])
def test_different_config_or_data_is_refused(option: str, expected: str, shapes: Path,
                                             tmp_path: Path) -> None:
    root = shapes / 'ade'
    first = train(config('sem_fpn'), '--data-root', root, '--work-dir', tmp_path / 'run',
                  '--no-report', *OPTIONS, *NO_WORKERS)  # yapf: disable
    second = [*first, option] if '=' in option else list(first)
    if '=' not in option:
        root = shutil.copytree(root, tmp_path / 'ade')
        label_map = sorted((root / 'annotations/training').iterdir())[0]
        if option == 'data':
            label_map.unlink()
            (root / 'images/training' / label_map.with_suffix('.jpg').name).unlink()
        else:
            label_map.write_bytes(label_map.read_bytes() + b'\0')
        second[second.index('--data-root') + 1] = root
    ended = run_independently(first, second, out=tmp_path)
    assert [each.status for each in ended] == [1, 1]
    for each in ended:
        assert re.search(f'train: .*{expected}', each.printed), each.printed[-3000:]
        assert 'Traceback' not in each.printed


def test_paths_may_differ_between_hosts() -> None:
    first = dict(data_root="'/data/coco'", lr='0.1', url="'s3://a/b'")
    assert format_differences(dict(data_root="'/scratch/7/coco'", lr='0.1', url="'/b'"),
                              first) == ''
    assert format_differences(dict(first, lr='0.2', more='1'),
                              first) == ('lr is 0.2 there, not 0.1, more is 1 there, not not set')
    assert format_differences({}, dict(commit='a'), missing=False) == ''


def test_irrelevant_settings_may_differ() -> None:
    cfg = read_config(config('sem_fpn'))
    first = get_relevant_settings(cfg)
    cfg.merge_from_dict({
        'stamp': '20260101_120000',  # a variable of the config
        'work_dir': 'runs/gpu07_20260101_120000',
        'log_level': 'DEBUG',
        'visualizer.name': 'gpu07',
        'visualizer.vis_backends.0.save_dir': 'runs/gpu07',
        'default_hooks.checkpoint.out_dir': 'runs/gpu07',
        'default_hooks.logger.out_dir': 'runs/gpu07',
        'val_evaluator.output_dir': 'runs/gpu07/maps',
    })
    assert format_differences(get_relevant_settings(cfg), first) == ''
    cfg.merge_from_dict({
        'default_hooks.checkpoint.interval': 7,
        'optim_wrapper.optimizer.lr': 7.,
        'test_dataloader.batch_size': 7,
        'model.backbone.drop_path_rate': 0.7,
    })
    found = format_differences(get_relevant_settings(cfg), first)
    assert re.findall(r'(\S+) is ', found) == [
        'default_hooks.checkpoint.interval', 'model.backbone.drop_path_rate',
        'optim_wrapper.optimizer.lr', 'test_dataloader.batch_size'
    ]
