"""Trainings whose disk is full for a while, or to the end: on a small disk of their own."""
from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LAYOUTS, NO_WORKERS, config, latest_log
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from test_work_dir import EVERY, TINY, Written

from colonnade.common.hashing import compute_sha256
from colonnade.engine.work_dir.trackers import TolerantLogFile
from colonnade.weights.checkpoint_files import SUMS, read_checksums

MEGABYTES = 24  # size of the disk: five checkpoints of the model


@HOOKS.register_module(force=True)
class FillDisk(Hook):
    """Fills the disk of the work dir before an iteration, and frees it before another.

    Args:
        full: The first iteration without room.
        free: The first with room again.
    """

    def __init__(self, full: int, free: int) -> None:
        self.full, self.free = full, free

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        filler = Path(runner.work_dir).parent / 'filler'
        if runner.iter + 1 == self.full:
            fill(filler)
        elif runner.iter + 1 == self.free:
            filler.unlink()


def fill(filler: Path) -> None:
    with filler.open('wb', buffering=0) as file:
        try:
            for size in (2**20, 2**10):
                while True:
                    try:
                        file.write(bytes(size))
                    except OSError:
                        break
        except OSError:
            pass


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of few megabytes."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', f'size={MEGABYTES}M', 'tmpfs', str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f'no file system can be mounted here: {done.stderr.strip()}')
    yield folder
    subprocess.run(['umount', '--lazy', str(folder)], check=True)


@pytest.fixture
def train(disk: Path, run_tool: Callable, shapes: Path, tmp_path: Path,
          monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Train so many iterations, with an evaluation and a checkpoint at each."""
    monkeypatch.setattr('colonnade.visualization.run_report.recorder.RunRecord.strict', False)

    def run(numbers: list[float], full: int = 0, free: int = 0, *arguments: str, own: str = '',
            options: tuple[str, ...] = ()) -> Path:  # yapf: disable
        Written.numbers, Written.evaluated = {at + 1: n for at, n in enumerate(numbers)}, 0
        hooks = f"custom_hooks = [dict(type='FillDisk', full={full}, free={free})]\n"
        (tmp_path / 'own.py').write_text(f'_base_ = {str(config("sem_fpn"))!r}\n{TINY}{hooks}{own}')
        run_tool('train', tmp_path / 'own.py', '--data-root', shapes / LAYOUTS['sem_fpn'],
                 '--work-dir', disk / 'run', *arguments, '--cfg-options',
                 f'train_cfg.max_iters={len(numbers)}', *EVERY,
                 'default_hooks.checkpoint.max_keep_ckpts=1', *options, *NO_WORKERS)
        return disk / 'run'

    return run


def list_checkpoint_files(work_dir: Path) -> set[str]:
    """Return the names of checkpoints and hidden files; check that SHA-256 match."""
    sums = read_checksums(work_dir)
    assert {name for name, _ in sums} == {path.name for path in work_dir.glob('*.pth')}
    assert all(compute_sha256(work_dir / name) == digest for name, digest in sums)
    hidden = [path.name for path in work_dir.iterdir() if path.name.startswith('.')]
    return {name for name, _ in sums} | set(hidden)


@pytest.mark.slow
def test_disk_is_full_temporarily(train: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    work_dir = train([0.5, 0.75, 0.25, 0.625], 2, 4)
    assert list_checkpoint_files(work_dir) == {'iter_4.pth', 'best_score_iter_4.pth'}
    assert (work_dir / 'last_checkpoint').read_text() == str(work_dir / 'iter_4.pth')
    assert (work_dir / 'best_checkpoint').read_text() == str(work_dir / 'best_score_iter_4.pth')
    said = ''.join(capsys.readouterr())
    size = (work_dir / 'iter_4.pth').stat().st_size
    found = re.search(r'ERROR - (.*iter_2.pth) cannot be saved: No space left on device \(it needs '
                      r'([\d,]+) bytes, and ([\d,]+) are free\). Training continues; saving '
                      r'will be retried when the next checkpoint is due and at the end. The latest '
                      rf'checkpoint is {work_dir}/iter_1.pth', said)  # yapf: disable
    assert found, said
    needed, free = (int(number.replace(',', '')) for number in found.groups()[1:])
    assert needed == pytest.approx(size, rel=0.05) and free < needed
    assert 'best_score_iter_2.pth cannot be saved: No space left' in said
    assert 'Traceback' not in said and 'Logging error' not in said
    infos = torch.load(work_dir / 'iter_4.pth', weights_only=False)['message_hub']['runtime_info']
    assert infos['best_score'] == 0.625 and infos['keep_ckpt_ids'] == [4]


def test_log_file_is_open_initially(tmp_path: Path) -> None:
    handler = TolerantLogFile(logging.FileHandler(tmp_path / 'log.txt'))
    handler.stream.write('initialized\n')
    handler.close()
    assert (tmp_path / 'log.txt').read_text() == 'initialized\n'


@pytest.mark.slow
def test_full_disk_with_mmengine_runner(train: Callable) -> None:
    workers = [f'{split}_dataloader.persistent_workers=False' for split in ('train', 'val')]
    work_dir = train([0.5, 0.75, 0.25, 0.625],
                     2,
                     4,
                     own="runner_type = 'Runner'\n",
                     options=tuple(workers))
    assert list_checkpoint_files(work_dir) == {'iter_4.pth', 'best_score_iter_4.pth'}


@pytest.mark.slow
def test_disk_stays_full(train: Callable, disk: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        train([0.5, 0.25, 0.25], 2, 0)
    text = str(stopped.value)
    assert re.match(
        f'train: {disk}/run/iter_3.pth cannot be saved: No space left on device .*Training has '
        'ended, and its last state is lost: free up disk space and resume with --resume. The '
        'latest '
        f'checkpoint is {disk}/run/iter_1.pth', text), text
    assert list_checkpoint_files(disk / 'run') == {'iter_1.pth', 'best_score_iter_1.pth'}
    (disk / 'filler').unlink()
    work_dir = train([0.5, 0.75, 0.25], 0, 0, '--resume')
    assert 'Iter(train) [2/3]' in latest_log(work_dir)
    assert list_checkpoint_files(work_dir) == {'iter_3.pth', 'best_score_iter_3.pth'}


@pytest.mark.slow
def test_last_checkpoint_is_saved_at_end(train: Callable, disk: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Written.compute_metrics

    def free(self: Written, results: list) -> dict:
        if Written.evaluated == 1:
            (disk / 'filler').unlink()
        return compute(self, results)

    monkeypatch.setattr(Written, 'compute_metrics', free)
    work_dir = train([0.5, 0.25], 2, 0)
    assert list_checkpoint_files(work_dir) == {'iter_2.pth', 'best_score_iter_1.pth'}
    assert f'saved the last checkpoint: {work_dir}/iter_2.pth' in latest_log(work_dir)
    assert SUMS in {path.name for path in work_dir.iterdir()}
