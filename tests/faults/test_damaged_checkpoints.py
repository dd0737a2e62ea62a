"""Checkpoints that are torn, altered or cut off while they are written: by files, without training.
"""
from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import get_file_backend
from safetensors.torch import save as safetensors_bytes
from safetensors.torch import save_file

from colonnade.common import atomic_files, locking
from colonnade.common.errors import UserError
from colonnade.common.hashing import compute_sha256
from colonnade.common.locking import lock_folder
from colonnade.engine.distributed.fsdp import create_shared_folder
from colonnade.engine.runner.launch import lock_work_dir
from colonnade.engine.work_dir.run import Run, select_resume_checkpoint
from colonnade.weights import checkpoint_files
from colonnade.weights.checkpoint_files import (NAME, SUMS, add_checksums, read_checksums,
                                                verify_checksum)
from colonnade.weights.files import read_checkpoint
from colonnade.weights.state_dicts import DamagedError

fork = get_context('fork')


def settings(work_dir: Path, **checkpoint: Any) -> Config:
    return Config(dict(work_dir=str(work_dir), default_hooks=dict(checkpoint=checkpoint)))


def state(step: int) -> dict[str, Any]:
    return dict(
        state_dict=dict(weight=torch.full((64, 64), float(step))),
        optimizer=dict(state={}),
        message_hub={},
        meta=dict(iter=step, epoch=0))


def save(folder: Path, step: int, *, note: bool = True, value: int | None = None) -> Path:
    """Save a checkpoint and record its path, as training does."""
    path = folder / f'iter_{step}.pth'
    torch.save(state(step if value is None else value), folder / 'content')
    content = (folder / 'content').read_bytes()
    (folder / 'content').unlink()
    get_file_backend(path, backend_args=dict(backend=NAME)).put(content, path)
    if note:
        atomic_files.write_text(folder / 'last_checkpoint', str(path), synced=True)
    return path


def flip(path: Path) -> None:
    """Alter a bit in the middle, where the numbers of a tensor are."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def blank(path: Path) -> None:
    """Keep the length without content, as after a power failure."""
    path.write_bytes(bytes(path.stat().st_size))


def hole(path: Path) -> None:
    with path.open('r+b') as file:
        file.seek(path.stat().st_size // 3)
        file.write(bytes(4096))


TEARS = [flip, cut, blank, hole, lambda path: path.write_bytes(b'')]


@pytest.mark.parametrize('tear', TEARS, ids=['flip', 'cut', 'blank', 'hole', 'empty'])
@pytest.mark.parametrize('has_sums', [True, False])
def test_damaged_checkpoint_falls_back(tear: Callable, has_sums: bool, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr('colonnade.engine.work_dir.run.print_log',
                        lambda text, **_: said.append(text))
    first, second = save(tmp_path, 2), save(tmp_path, 10)
    if not has_sums:  # an earlier version, or mmengine's runner
        (tmp_path / SUMS).unlink()
    cfg = settings(tmp_path)
    assert Run.from_config(cfg).find_latest_intact() == second and not said
    tear(second)
    assert Run.from_config(cfg).find_latest_intact() == first
    assert re.search(rf'{second} is .*Training resumes from the one before, {first}', said[0])
    with pytest.raises(DamagedError, match='iter_10.pth'):
        read_checkpoint(second)
    tear(first)
    with pytest.raises(DamagedError) as raised:
        Run.from_config(cfg).find_latest_intact()
    text = str(raised.value)
    assert re.search('no checkpoint is intact: .*iter_10.pth.*iter_2.pth', text)
    assert text.count('delete its line') == has_sums


@pytest.mark.parametrize('best', ['intact', 'damaged', None])
def test_all_checkpoints_damaged(best: str | None, tmp_path: Path) -> None:
    path = tmp_path / 'best_mIoU_iter_2.pth'
    if best:
        torch.save(dict(state_dict=dict(weight=torch.ones(64, 64))), path)
    if best == 'damaged':
        cut(path)
    cut(save(tmp_path, 4))
    with pytest.raises(DamagedError) as raised:
        Run.from_config(settings(tmp_path)).find_latest_intact()
    advice = 'Start a new run in another --work-dir'
    start = f', from the best checkpoint: --load-from {path}'
    assert str(raised.value).endswith(f'there. {advice}{start if best == "intact" else ""}')


def test_old_best_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr('colonnade.engine.work_dir.run.print_log',
                        lambda text, **_: said.append(text))
    cfg, path = settings(tmp_path), tmp_path / 'best_mIoU_iter_2.pth'
    runner: Any = SimpleNamespace(cfg=cfg, _resume=False, _load_from=None)
    for step in range(3):
        path.write_text(f'of start {step}')
        (tmp_path / 'best_checkpoint').write_text(str(path))
        select_resume_checkpoint(runner)
        name = f'earlier{step or ""}_best_mIoU_iter_2.pth'
        assert (tmp_path / name).read_text() == f'of start {step}'
        assert not path.exists() and not (tmp_path / 'best_checkpoint').exists()
        assert f'The best one is kept as {tmp_path / name}' in said[step]
    runner._resume = True
    save(tmp_path, 4)
    path.write_text('of this start')
    select_resume_checkpoint(runner)
    assert path.read_text() == 'of this start'


@pytest.mark.parametrize('note', [None, '/moved/best_mAP_iter_2.pth'])
def test_recorded_best_checkpoint_is_suggested(note: str | None, tmp_path: Path) -> None:
    for metric, time_of in (('mAP', 1), ('mIoU', 2)):
        path = tmp_path / f'best_{metric}_iter_2.pth'
        torch.save(state(2), path)
        os.utime(path, (time_of, time_of))
    if note:
        (tmp_path / 'best_checkpoint').write_text(note)
    cut(save(tmp_path, 4))
    with pytest.raises(DamagedError, match=f'best_{"mAP" if note else "mIoU"}_iter_2.pth$'):
        Run.from_config(settings(tmp_path)).find_latest_intact()


def test_replaced_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    first, second = save(tmp_path, 2), save(tmp_path, 4)
    shutil.copy(first, second)
    with pytest.raises(
            DamagedError, match='altered: its SHA-256 does not match .* delete its '
            'line there'):
        read_checkpoint(second)
    assert Run.from_config(settings(tmp_path)).find_latest_intact() == first
    lines = (tmp_path / SUMS).read_text().splitlines(keepends=True)
    (tmp_path / SUMS).write_text(lines[0])
    assert Run.from_config(settings(tmp_path)).find_latest_intact() == second


@pytest.mark.parametrize('text', ['', '/gone/run/iter_4.pth', '/gone/iter_', 'iter_4.pth\n', None])
def test_last_checkpoint_record_may_be_lost(text: str | None, tmp_path: Path) -> None:
    for step in (2, 4):
        path = save(tmp_path, step)
    note = tmp_path / 'last_checkpoint'
    note.unlink() if text is None else note.write_text(text)
    assert Run.from_config(settings(tmp_path)).find_latest_intact() == path


def test_copied_run_resumes_from_own_checkpoint(tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr('colonnade.engine.work_dir.run.print_log',
                        lambda text, **_: said.append(text))
    first, copied = tmp_path / 'first', tmp_path / 'copied'
    first.mkdir()
    save(first, 2)
    shutil.copytree(first, copied)
    assert (copied / 'last_checkpoint').read_text() == str(first / 'iter_2.pth')
    assert Run.from_config(settings(copied)).checkpoints() == [copied / 'iter_2.pth']
    assert Run.from_config(
        settings(copied)).find_latest_intact() == copied / 'iter_2.pth' and not said
    (copied / 'iter_2.pth').unlink()
    assert Run.from_config(settings(copied)).find_latest_intact() == first / 'iter_2.pth'
    assert f'resumes from {first}/iter_2.pth: {copied}/last_checkpoint names a' in said[0]


def test_latest_checkpoint_is_saved_last(tmp_path: Path) -> None:
    for step in (2, 4, 3):
        save(tmp_path, step)
    save(tmp_path, 5, note=False).rename(tmp_path / 'best_mIoU_iter_5.pth')
    assert [path.name[5]
            for path in Run.from_config(settings(tmp_path)).checkpoints()] == list('342')
    (tmp_path / SUMS).unlink()
    assert [path.name[5]
            for path in Run.from_config(settings(tmp_path)).checkpoints()] == list('342')


def test_checkpoints_in_out_dir(tmp_path: Path) -> None:
    (tmp_path / 'run').mkdir()
    (tmp_path / 'out/run').mkdir(parents=True)
    path = save(tmp_path / 'out/run', 2)
    cfg = settings(tmp_path / 'run', out_dir=str(tmp_path / 'out'))
    assert Run.from_config(cfg).find_latest_intact() == path
    shutil.move(tmp_path / 'out/run/last_checkpoint', tmp_path / 'run')
    assert Run.from_config(settings(tmp_path / 'run')).find_latest_intact() == path
    assert Run.from_config(settings(tmp_path)).find_latest_intact() is None


def killed_at(event: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a process that kills itself at a change of files; False if there are fewer.

    Files are opened, written, renamed and deleted. In front of each, the process ends as by
    ``kill -9``.
    """

    def run() -> None:
        left = event

        def count(name: str, arguments: tuple) -> None:
            nonlocal left
            if name in ('os.rename', 'os.remove', 'os.rmdir', 'os.mkdir') or \
                    (name == 'open' and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        fsync = os.fsync

        def counted(handle: int) -> None:
            count('os.rename', ())
            fsync(handle)

        os.fsync = counted
        sys.addaudithook(count)
        work()
        os._exit(0)

    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)  # torch has threads, which sleep
        process = fork.Process(target=run)
        process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_killed_at_each_step_of_saving(tmp_path: Path) -> None:
    start, found, at, is_killed = tmp_path / 'start', set(), 0, True
    start.mkdir()
    save(start, 4)
    while is_killed:
        folder = shutil.copytree(start, tmp_path / str(at))
        (folder / 'last_checkpoint').write_text(str(folder / 'iter_4.pth'))

        def work(folder: Path = folder) -> None:
            save(folder, 4, value=5)
            save(folder, 6)

        is_killed = killed_at(at, work)
        runner = SimpleNamespace(cfg=settings(folder), _resume=True, _load_from=None)
        select_resume_checkpoint(runner)
        state_dict = read_checkpoint(runner._load_from)['state_dict']
        found.add((Path(runner._load_from).name, state_dict['weight'][0, 0].item()))
        assert not list(folder.glob('.*.pth'))
        at += 1
    assert at > 24 and found == {('iter_4.pth', 4), ('iter_4.pth', 5), ('iter_6.pth', 6)}


def write_folder(path: Path, step: int) -> None:
    """A folder of shards, as one process writes it."""
    with create_shared_folder(path) as scratch:
        (scratch / 'shard-00001-model-00001-of-00001.safetensors').write_bytes(
            safetensors_bytes(dict(weight=torch.full((8, ), float(step)))))
        torch.save(state(step), scratch / 'rest')
        content = (scratch / 'rest').read_bytes()
        (scratch / 'rest').unlink()
        get_file_backend('', backend_args=dict(backend=NAME)).put(content, scratch / 'rest.pth')


@pytest.mark.slow
def test_killed_at_each_step_of_saving_shards(tmp_path: Path) -> None:
    at, found = 0, set()
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        write_folder(folder / 'iter_2.pth', 2)
        is_killed = killed_at(at, lambda folder=folder: write_folder(folder / 'iter_2.pth', 3))
        select_resume_checkpoint(
            SimpleNamespace(cfg=settings(folder), _resume=False, _load_from=None))
        content = read_checkpoint(folder / 'iter_2.pth/rest.pth')
        found.add(content['meta']['iter'])
        for name, digest in read_checksums(folder / 'iter_2.pth'):
            assert compute_sha256(folder / 'iter_2.pth' / name) == digest
        assert [path.name for path in folder.iterdir()] == ['iter_2.pth']
        if not is_killed:
            break
        at += 1
    assert at > 8 and found == {2, 3}


@pytest.mark.parametrize('is_altered', [True, False])
def test_damaged_or_missing_shards(is_altered: bool, tmp_path: Path) -> None:
    for step in (2, 4):
        write_folder(tmp_path / f'iter_{step}.pth', step)
        os.utime(tmp_path / f'iter_{step}.pth', (step, step))
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_4.pth'))
    shard, = (tmp_path / 'iter_4.pth').glob('*.safetensors')
    if is_altered:
        save_file(dict(weight=torch.full((8, ), 5.)), shard)
        match = f'{shard} is damaged or was altered'
    else:
        shard.unlink()
        match = f'{shard.name} is missing'
    with pytest.raises(DamagedError, match=match):
        checksums_of_folder(tmp_path / 'iter_4.pth')
    assert Run.from_config(settings(tmp_path)).checkpoints()[0].name == 'iter_4.pth'


def checksums_of_folder(folder: Path) -> None:
    from colonnade.weights.sharded_files import check_folder
    check_folder(folder)


def test_sha256sum_reads_checksums(tmp_path: Path) -> None:
    for step in (2, 4, 4):
        path = save(tmp_path, step)
    command = ['sha256sum', '--check', SUMS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == 'iter_2.pth: OK\niter_4.pth: OK\n'
    get_file_backend(path, backend_args=dict(backend=NAME)).remove(tmp_path / 'iter_2.pth')
    flip(path)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == 'iter_4.pth: FAILED\n' and done.returncode


def test_file_is_synced_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        events.append(f'sync {Path(os.readlink(f"/proc/self/fd/{handle}")).suffix}')
        fsync(handle)

    def replaced(scratch: Path, path: Path) -> Path:
        events.append(f'rename {path.name}')
        return replace(scratch, path)

    monkeypatch.setattr(os, 'fsync', synced)
    monkeypatch.setattr(Path, 'replace', replaced)
    save(tmp_path, 2)
    assert events == [
        'sync .sha256', f'rename {SUMS}', 'sync ', 'sync .pth', 'rename iter_2.pth', 'sync ',
        'sync ', 'rename last_checkpoint', 'sync '
    ]


def test_third_party_files_load(tmp_path: Path) -> None:
    torch.save(state(1), tmp_path / 'theirs.pth')
    torch.serialization.set_crc32_options(False)
    torch.save(state(1), tmp_path / 'fast.pth')
    torch.serialization.set_crc32_options(True)
    torch.save(state(1), tmp_path / 'old.pth', _use_new_zipfile_serialization=False)
    save(tmp_path, 2)
    for name in ('theirs', 'fast', 'old'):
        assert read_checkpoint(tmp_path / f'{name}.pth')['meta']['iter'] == 1
    flip(tmp_path / 'theirs.pth')
    with pytest.raises(DamagedError, match='theirs.pth is damaged: the CRC-32 of'):
        read_checkpoint(tmp_path / 'theirs.pth')


def test_checksum_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = save(tmp_path, 2), []
    monkeypatch.setattr(checkpoint_files, 'compute_sha256',
                        lambda path: read.append(path) or compute_sha256(path))
    for _ in range(3):
        verify_checksum(path)
    assert len(read) == 1
    flip(path)
    with pytest.raises(DamagedError):
        verify_checksum(path)


def test_invalid_checksum_list_is_ignored(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    (tmp_path / SUMS).write_bytes(b'\xff\x00 garbage\n' + b'0' * 63 + b'  iter_2.pth\n')
    assert Run.from_config(settings(tmp_path)).find_latest_intact() == path
    add_checksums(tmp_path, {path.name: compute_sha256(path)})
    assert read_checksums(tmp_path) == [('iter_2.pth', compute_sha256(path))]


def hold(folder: Path, ready: Any) -> None:
    with lock_work_dir(Config(dict(work_dir=str(folder), launcher='none'))):
        ready.set()
        signal.pause()


@pytest.mark.parametrize('nfs', [False, True])
def test_killed_run_releases_lock(nfs: bool, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    if nfs:
        flock = locking.fcntl.flock

        def of_nfs(handle: int, how: int) -> None:
            if os.path.isdir(f'/proc/self/fd/{handle}'):
                raise OSError(9, 'Bad file descriptor')
            flock(handle, how)

        monkeypatch.setattr(locking.fcntl, 'flock', of_nfs)
    ready = fork.Event()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        other = fork.Process(target=hold, args=(tmp_path, ready))
        other.start()
    assert ready.wait(60)
    cfg = Config(dict(work_dir=str(tmp_path), launcher='none'))
    with pytest.raises(UserError, match='another run is training in'), lock_work_dir(cfg):
        pass
    other.kill()
    other.join()
    with lock_work_dir(cfg):
        with pytest.raises(UserError), lock_folder(tmp_path, ''):
            pass


def test_file_system_without_locks_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:

    def no_locks(handle: int, how: int) -> None:
        raise OSError(38, 'Function not implemented')

    monkeypatch.setattr(locking.fcntl, 'flock', no_locks)
    with lock_work_dir(Config(dict(work_dir=str(tmp_path), launcher='none'))):
        printed = capsys.readouterr().out
    assert 'does not support locks: do not start another run in this folder' in printed
