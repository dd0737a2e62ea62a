"""A process that dies, hangs or lacks memory ends its job, and the log says why."""
from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import NO_VAL, NO_WORKERS, ROOT, SHORT, config, latest_log, run_two
from independent_processes import Ended, run_independently, train
from mmengine.registry import MODELS

from colonnade.engine.agreement import differences
from colonnade.engine.launch import read_config
from colonnade.engine.watching.hooks import Phases, Progress
from colonnade.engine.watching.judging import (BUSY, DATA, GATHERS, HOOKS, LEFT, STEP, Report,
                                               hanging)

LIMIT = 4  # seconds; the default is 45
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
                    "custom_imports = dict(imports=['process_faults'])\n"
                    f'custom_hooks = {[dict(hook, type="ProcessFault")] if hook else []}\n' +
                    (f'{loader} = dict(dataset=dict(pipeline=['
                     f'dict({transform}, type="SampleFault"), '
                     f'*_base_.{loader}.dataset.pipeline]))\n' if transform else ''))
    return path


def run_two_of(path: Path,
               shapes: Path,
               tmp_path: Path,
               *options: str,
               timeout: float = 100) -> list[Ended]:
    """Train in two processes that nothing but we stop."""
    command = train(path, '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run',
                    '--hang-limit', LIMIT, '--no-report', *OPTIONS, *options)  # yapf: disable
    return run_independently(command, command, out=tmp_path, timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize('fault, rank, expected', [
    ('kill', 1, r'process 1 \(pid \d+ on \S+\) was killed or crashed, without a word'),
    ('kill', 0, r'process 0 \(pid \d+ on \S+\) was killed or crashed, without a word'),
    ('fail', 1, r'process 1 \(pid \d+ on \S+\) ended: RuntimeError: a fault of one process'),
    ('fail', 0, r'process 0 \(pid \d+ on \S+\) ended: RuntimeError: a fault of one process'),
    ('memory', 1, r'process 1 \(.*\) ended: RuntimeError: .*can.t allocate memory'),
])
def test_a_process_that_dies_ends_all(fault: str, rank: int, expected: str, shapes: Path,
                                      tmp_path: Path) -> None:
    """Also where nothing stops the others, as with srun."""
    ended = run_two_of(
        faulty(tmp_path, hook=dict(fault=fault, rank=rank)), shapes, tmp_path, *NO_WORKERS, *NO_VAL)
    statuses = [each.status for each in ended]
    assert statuses == [-9 if fault == 'kill' and rank == own else 1 for own in (0, 1)]
    assert re.search(expected, latest_log(tmp_path / 'run'))
    assert re.search(f'train: {expected}', ended[1 - rank].printed)
    assert 'Traceback' not in ended[1 - rank].printed


@pytest.mark.slow
@pytest.mark.parametrize('rank', [0, 1])
def test_a_stopped_process_ends_all(rank: int, shapes: Path, tmp_path: Path) -> None:
    """By SIGSTOP; the others end, what is stopped is left to the launcher."""
    ended = run_two_of(
        faulty(tmp_path, hook=dict(fault='stop', rank=rank)),
        shapes,
        tmp_path,
        *NO_WORKERS,
        *NO_VAL,
        timeout=60)
    assert [each.status for each in ended] == [None if rank == own else 1 for own in (0, 1)]
    assert re.search(
        rf'the run hangs: process {rank} \(.*\) was not heard of for \d+ s, '
        'after it was in iteration', latest_log(tmp_path / 'run'))


@pytest.mark.slow
@pytest.mark.parametrize('num_workers', [0, 1])
def test_an_endless_loop_in_a_transform_ends_all(num_workers: int, shapes: Path,
                                                 tmp_path: Path) -> None:
    """In a process or in its worker, none of which is left."""
    options = NO_WORKERS if num_workers == 0 else [
        'train_dataloader.num_workers=1', 'train_dataloader.persistent_workers=False'
    ]
    ended = run_two_of(
        faulty(tmp_path, transform=dict(fault='loop', count=7, rank=1)), shapes, tmp_path, *options,
        *NO_VAL)
    assert [each.status for each in ended] == [1, 1]
    assert re.search(r'the run hangs: process 1 \(.*\) waits for the data of iteration \d since',
                     latest_log(tmp_path / 'run'))
    stacks, = (tmp_path / 'run').glob('*/stacks_of_process_1.txt')
    assert ('in loop' if num_workers == 0 else 'dataloader.py') in stacks.read_text()


@pytest.mark.slow
@pytest.mark.parametrize('rank', [0, 1])
def test_a_slow_evaluation_is_no_hang(rank: int, shapes: Path, tmp_path: Path) -> None:
    """It takes twice the limit in one process, and the other waits."""
    ended = run_two_of(
        faulty(tmp_path, hook=dict(fault='late', rank=rank, iteration=0)), shapes, tmp_path,
        'train_cfg.val_interval=3', *NO_WORKERS)
    assert [each.status for each in ended] == [0, 0], ended
    assert 'hangs' not in latest_log(tmp_path / 'run')


@pytest.mark.slow
def test_a_slow_disk_is_no_hang(shapes: Path, tmp_path: Path) -> None:
    """Each image takes two seconds in one process, half of what is allowed."""
    ended = run_two_of(
        faulty(tmp_path, transform=dict(fault='slow', count=1, rank=1)), shapes, tmp_path,
        'train_dataloader.batch_size=1', 'train_cfg.max_iters=4', *NO_WORKERS, *NO_VAL)
    assert [each.status for each in ended] == [0, 0], ended
    assert not list((tmp_path / 'run').glob('*/stacks*'))


def evaluation(path: Path, shapes: Path, tmp_path: Path, weights: str = 'model.pth') -> list:
    """The command line of an evaluation of four images, and the file of weights that it names."""
    model = MODELS.build(read_config(path).model)
    torch.save(model.state_dict(), tmp_path / weights)
    return [ROOT / 'tools/test.py', path, tmp_path / weights, '--launcher', 'pytorch',
            '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run', '--hang-limit', LIMIT,
            '--cfg-options', 'test_dataloader.num_workers=0',
            'test_dataloader.persistent_workers=False']  # yapf: disable


def evaluate_by_two(path: Path, shapes: Path, tmp_path: Path) -> list[Ended]:
    """Evaluate in two processes that nothing but we stop."""
    command = evaluation(path, shapes, tmp_path)
    return run_independently(command, command, out=tmp_path, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize('fault, rank, expected', [
    ('kill', 1, r'process 1 \(pid \d+ on \S+\) was killed or crashed, without a word'),
    ('fail', 0, r'process 0 \(pid \d+ on \S+\) ended: RuntimeError: a fault of one process'),
    ('stop', 1, r'the run hangs: process 1 \(.*\) was not heard of for \d+ s, after it was in'),
])
def test_an_evaluation_ends_as_a_whole(fault: str, rank: int, expected: str, shapes: Path,
                                       tmp_path: Path) -> None:
    path = faulty(tmp_path, hook=dict(fault=fault, rank=rank, iteration=2))
    ended = evaluate_by_two(path, shapes, tmp_path)
    of_faulty = dict(kill=-9, fail=1, stop=None)[fault]
    assert [each.status for each in ended] == [of_faulty if rank == own else 1 for own in (0, 1)]
    assert re.search(expected, latest_log(tmp_path / 'run'))
    assert re.search(expected, ended[1 - rank].printed)
    assert 'Traceback' not in ended[1 - rank].printed
    assert not list(tmp_path.glob('run/*/metrics.json'))


@pytest.mark.slow
def test_an_endless_loop_in_an_evaluation_ends_all(shapes: Path, tmp_path: Path) -> None:
    """While the other process waits for what this one found."""
    fault = dict(fault='loop', count=2, rank=1)
    path = faulty(tmp_path, transform=fault, loader='test_dataloader')
    assert [each.status for each in evaluate_by_two(path, shapes, tmp_path)] == [1, 1]
    assert re.search(r'the run hangs: process 1 \(.*\) waits for the data of iteration 2 since',
                     latest_log(tmp_path / 'run'))


@pytest.mark.slow
def test_an_evaluation_of_another_checkpoint_is_refused(shapes: Path, tmp_path: Path) -> None:
    commands = [evaluation(config('sem_fpn'), shapes, tmp_path, weights)
                for weights in ('one.pth', 'other.pth')]  # yapf: disable
    ended = run_independently(*commands, out=tmp_path)
    assert [each.status for each in ended] == [1, 1]
    for each in ended:
        assert re.search('test: process 1 .* evaluates other weights than process 0 .*: '
                         '.*other.pth, not .*one.pth', each.printed)  # yapf: disable


def test_who_holds_up_the_others() -> None:
    """From what processes say of themselves, as the first of them judges it."""

    def reports(*states: tuple[str, float, float], longest: float = 0.) -> list[Report]:
        return [Report(rank, 'here', 7, phase, 12, seconds, longest, silence)
                for rank, (phase, seconds, silence) in enumerate(states)]  # yapf: disable

    for fine in (
            reports((STEP, 44, 0), (DATA, 44, 0)),
            reports((STEP, 500, 0), (BUSY, 500, 0)),  # saves, or starts
            reports((STEP, 500, 0), (BUSY, 0, 500)),  # reads a large file in one call
            reports((STEP, 500, 0), (HOOKS, 500, 0)),
            reports((GATHERS, 500, 0), (GATHERS, 0, 500)),
            reports((STEP, 50, 0), (DATA, 50, 0), longest=6)):
        assert hanging(fine, 45) == ''
    for states, expected in (
        (((STEP, 46, 0), (DATA, 44, 0)), 'process 1 .* waits for the data of iteration 12'),
        (((STEP, 46, 0), (STEP, 1, 45)), 'process 1 .* was not heard of for 45 s'),
        (((STEP, 46, 0), (HOOKS, 1, 45)), 'process 1 .* was not heard of'),
        (((DATA, 46, 0), (GATHERS, 900, 0)), 'process 0 .* waits for the data'),
        (((STEP, 46, 0), (LEFT, 46, 46)), 'process 1 .* has ended at iteration 12'),
        (((STEP, 46, 0), (STEP, 46, 0)),
         'process 0 .* is in iteration 12 since 46 s, as are 2 of 2'),
    ):
        assert re.match(expected, hanging(reports(*states), 45))


@pytest.mark.parametrize('kind', ['train', 'val', 'test'])
def test_what_is_slow_from_the_first_batch_on_is_no_hang(kind: str) -> None:
    """The first may take any time, and those behind it twice that."""
    progress = Progress()
    hook = Phases(progress, is_first=True)
    runner = SimpleNamespace(iter=0, val_loop=SimpleNamespace(dataloader=[0, 0]),
                             test_loop=SimpleNamespace(dataloader=[0, 0]))  # yapf: disable
    getattr(hook, f'before_{kind}_epoch' if kind == 'train' else f'before_{kind}')(runner)
    getattr(hook, f'before_{kind}_iter')(runner, 0)
    assert progress.phase == BUSY
    time.sleep(0.1)
    getattr(hook, f'after_{kind}_iter')(runner, 0)
    getattr(hook, f'before_{kind}_iter')(runner, 1)
    for seconds, hangs in ((0.19, False), (0.5, True)):
        report = Report(0, 'here', 7, progress.phase, 2, seconds, progress.longest)
        assert bool(hanging([report, report], 0.01)) == hangs


@pytest.mark.parametrize('limit', ['-1', 'nan'])
def test_limits_are_numbers_from_0_on(limit: str, shapes: Path, tmp_path: Path,
                                      run_tool: Callable) -> None:
    with pytest.raises(SystemExit, match=f'train: --hang-limit must be 0 or more, got {limit}'):
        run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', tmp_path,
                 '--hang-limit', limit)  # yapf: disable


def test_what_two_processes_compare(tmp_path: Path) -> None:
    for name, content in (('one', b'1'), ('copy', b'1'), ('other', b'2')):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'rest.pth').write_bytes(content)
    printed = run_two('tests/agreeing_processes.py', tmp_path, out=tmp_path)
    assert printed.count('the same file: the same') == 2
    assert printed.count('equal shards: the same') == 2
    assert len(re.findall('other shards: process 1 .* evaluates other weights than process 0 .*: '
                          '.*other, not .*one', printed)) == 2  # yapf: disable
    assert printed.count('the same URL: the same') == 2
    assert len(re.findall('another URL: .*: https://b/x.pth, not https://a/x.pth', printed)) == 2
    assert printed.count('data of a backend: the same') == 2
    assert len(re.findall('another number: .* other data .*: 2 images in', printed)) == 2


@pytest.mark.slow
@pytest.mark.parametrize('option, expected', [
    ('train_dataloader.batch_size=4',
     'process 1 .* another config than process 0 .*: train_dataloader.batch_size is 4 there, not 2'
     ),
    ('data', 'process 1 .* other data than process 0 .*: 11 images in train_dataloader, not 12'),
    ('label map', 'process 1 .* other data .*: the content of .*annotations/training is not that '),
])
def test_a_process_with_another_config_or_data_is_refused(option: str, expected: str, shapes: Path,
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


def test_paths_may_differ_between_machines() -> None:
    first = dict(data_root="'/data/coco'", lr='0.1', url="'s3://a/b'")
    assert differences(dict(data_root="'/scratch/7/coco'", lr='0.1', url="'/b'"), first) == ''
    assert differences(dict(first, lr='0.2', more='1'),
                       first) == ('lr is 0.2 there, not 0.1, more is 1 there, not not set')
    assert differences({}, dict(commit='a'), missing=False) == ''
