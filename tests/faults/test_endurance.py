"""Long runs hold no more at their end; workers, disks and users that fail or crowd lose nothing."""
from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import random
import signal
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from conftest import SHORT, config, latest_log
from live_server import file_of, live_server, random_model, shapes_image
from mmengine.fileio import get
from test_memory_stays_flat import SIDES, held
from torch.utils.data import DataLoader, Dataset, get_worker_info

from colonnade.common.storage import retrying_backend
from colonnade.common.storage.shard_index import Place
from colonnade.common.storage.shard_reader import read_place
from colonnade.engine.runner.worker_restarts import RestartingLoader, WorkersDied, restart_workers

GROWTH = 8  # MiB that a part of a run may hold more than the part before


@pytest.mark.slow
def test_a_training_stays_flat(run_tool: Callable, shapes: Path, tmp_path: Path) -> None:
    """2,000 iterations with two workers, four evaluations and eight checkpoints."""
    (tmp_path / 'measured.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\n'
        "custom_imports = dict(imports=['measured_run'])\n"
        f"custom_hooks = [dict(type='MeasuredRun', path={str(tmp_path / 'held')!r}, "
        'interval=250)]\n')
    run_tool('train', tmp_path / 'measured.py', '--data-root', shapes / 'ade', '--work-dir',
             tmp_path / 'run', *SHORT[:1], 'train_cfg.max_iters=2000', 'train_cfg.val_interval=500',
             'default_hooks.checkpoint.interval=250', 'train_dataloader.batch_size=1',
             'train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True')
    lines = [json.loads(line) for line in (tmp_path / 'held').read_text().splitlines()]
    print('\n'.join(map(str, lines)))
    first, last = lines[3], lines[-1]  # after 1,000 and 2,000
    assert last['held'] < first['held'] + GROWTH
    assert last['held_by_workers'] < first['held_by_workers'] + GROWTH
    for what in ('files', 'threads', 'children'):
        assert last[what] <= first[what]


@pytest.mark.slow
@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_predictions_stay_flat(head: str) -> None:
    """500 images of 25 sizes, from pixels to results."""
    model, sizes, found = random_model(head), random.Random(0), []
    for number in range(1, 501):
        image = np.random.default_rng(number).integers(
            0, 256, (sizes.choice(SIDES), sizes.choice(SIDES), 3), dtype=np.uint8)
        model.predict(image)
        if number % 100 == 0:
            found.append((held(), len(os.listdir('/proc/self/fd'))))
    print(head, [f'{mib:.0f} MiB, {files} files' for mib, files in found])
    assert found[-1][0] < found[1][0] + GROWTH and found[-1][1] <= found[1][1]


@pytest.mark.slow
def test_requests_stay_flat() -> None:
    """1,000 images to the server, a quarter of which it refuses."""
    images = [file_of(shapes_image(seed, (64, 48))) for seed in range(30)]
    images += [b'no image'] * 10
    found = []
    with live_server(random_model('sem_fpn')) as live, httpx.Client(timeout=60) as client:
        for number in range(1, 1001):
            answer = client.post(f'{live.url}/api/predict', content=images[number % len(images)])
            assert answer.status_code == (200 if number % len(images) < 30 else 415)
            if number % 250 == 0:
                found.append((held(), len(os.listdir('/proc/self/fd')), threading.active_count()))
    print([f'{mib:.0f} MiB, {files} files, {threads} threads' for mib, files, threads in found])
    assert found[-1][0] < found[1][0] + GROWTH
    assert found[-1][1:] <= found[1][1:]


@pytest.mark.slow
def test_200_users_at_once() -> None:
    """Each gets the answer to the own image; those that are told to come again do so."""
    model = random_model('mask_rcnn')
    images = [shapes_image(seed, (64, 48)) for seed in range(40)]
    alone = [model.predict(image).above(0.6) for image in images]
    assert len({expected.boxes.tobytes() for expected in alone}) > 30
    start, refused = threading.Barrier(200), []

    def ask(number: int) -> dict[str, Any]:
        start.wait()
        content = file_of(images[number % 40])
        while True:
            answer = httpx.post(f'{live.url}/api/predict?threshold=0.6', content=content,
                                timeout=300)  # yapf: disable
            if answer.status_code != 503:
                return answer.json()
            refused.append(number)
            time.sleep(int(answer.headers['retry-after']))

    with live_server(model, batch_size=4) as live, ThreadPoolExecutor(200) as users:
        answers = list(users.map(ask, range(200)))
    print(f'{len(refused)} answers were to come again, largest batch {max(model.batches)}')
    assert max(model.batches) > 1
    for number, answer in enumerate(answers):
        expected = alone[number % 40]
        assert [found['class'] for found in answer['instances']] == list(expected.names), number
        np.testing.assert_allclose([found['box'] for found in answer['instances']],
                                   expected.boxes.reshape(-1, 4),
                                   atol=0.1)


class Fatal(Dataset):
    """Samples with random numbers, during one of which the worker is killed.

    Args:
        done: A file that says that it was; killed again and again if None.
    """

    def __init__(self, done: Path | None) -> None:
        self.done = done

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index == 9 and get_worker_info() and not (self.done and self.done.exists()):
            if self.done:
                self.done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    def get_data_info(self, index: int) -> dict[str, str]:
        return dict(img_path=f'{index}.jpg')


@pytest.mark.slow
@pytest.mark.parametrize('persistent', [False, True])
def test_killed_workers_are_started_again(persistent: bool, tmp_path: Path) -> None:
    """No batch is lost, none comes twice, and random numbers of this process are the same."""
    data = Fatal(tmp_path / 'done')
    loader = restart_workers(DataLoader(data, 2, num_workers=2, persistent_workers=persistent))
    before = signal.getsignal(signal.SIGCHLD)
    torch.manual_seed(0)
    batches = [batch.tolist() for _ in range(2) for batch in loader]
    state = torch.random.get_rng_state()
    assert (tmp_path / 'done').exists()
    assert batches == [[2 * i, 2 * i + 1] for _ in range(2) for i in range(12)]
    assert signal.getsignal(signal.SIGCHLD) == before
    torch.manual_seed(0)
    plain = DataLoader(data, 2, num_workers=2, persistent_workers=persistent)
    assert [batch.tolist() for _ in range(2) for batch in plain] == batches
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize('persistent', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_pass_in_the_middle_of_another(persistent: bool) -> None:
    data: Any = range(8)
    loader = restart_workers(DataLoader(data, 2, num_workers=1, persistent_workers=persistent))
    expected, outer = [[0, 1], [2, 3], [4, 5], [6, 7]], []
    for batch in loader:
        outer.append(batch.tolist())
        if len(outer) == 2:
            assert next(iter(loader)).tolist() == [0, 1]  # left in its middle
            assert [each.tolist() for each in loader] == expected
    assert outer == expected and [each.tolist() for each in loader] == expected


@pytest.mark.slow
def test_workers_that_die_again_and_again() -> None:
    loader = restart_workers(DataLoader(Fatal(None), 2, num_workers=1))
    assert isinstance(loader, RestartingLoader) and len(loader) == 12
    with pytest.raises(WorkersDied, match=r'worker \d+ \(SIGKILL, as for lack of memory\) died, as '
                       r'did .* 3 times among the same samples: .*9.jpg'):  # yapf: disable
        list(loader)


class Large(Dataset):
    """Samples that are larger than a pipe holds, with the worker that reads them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int, bytes]:
        return os.getpid(), index, bytes(1_000_000)


@pytest.mark.parametrize('at', [2, 7])
def test_a_worker_is_killed_in_a_step(at: int) -> None:
    """While it sends a batch, or between two passes, where it stays for the next."""
    loader = restart_workers(
        DataLoader(Large(), num_workers=1, collate_fn=list, persistent_workers=True))
    found = []
    for step, [(worker, index, _)] in enumerate(chain(loader, loader)):
        found.append(index)
        if step == at:
            time.sleep(0.2)  # it fills its pipe meanwhile
            os.kill(worker, signal.SIGKILL)
    assert found == 2 * list(range(8))


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_end_when_they_are_told_to(persistent: bool) -> None:
    """In the middle of a pass too, which goes on with others; and with the last reference."""
    data: Any = range(8)
    loader = restart_workers(DataLoader(data, 2, num_workers=2, persistent_workers=persistent))
    assert isinstance(loader, RestartingLoader)
    batches = iter(copy(loader))  # as loops without an end read it
    found = [next(batches).tolist()]
    first = multiprocessing.active_children()
    loader.end_workers()
    assert len(first) == 2 and not any(worker.is_alive() for worker in first)
    found += [batch.tolist() for batch in batches]
    assert found == [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del batches, loader
        assert gone() is None
    finally:
        gc.enable()


def test_passes_leave_no_file_open() -> None:
    """Also where the collector of garbage is off."""
    loader = restart_workers(DataLoader(Large(), num_workers=1, collate_fn=list))
    before = pipes()
    gc.disable()
    try:
        for _ in range(4):
            assert len(list(loader)) == 8
        for _ in range(600):  # threads that feed workers close theirs a little later
            if not (left := pipes() - before):
                break
            time.sleep(0.1)
    finally:
        gc.enable()
    assert not left


def pipes() -> set[str]:
    """The pipes that this process has open."""
    found = set()
    for file in Path('/proc/self/fd').iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(file))
    return {name for name in found if name.startswith('pipe:')}


@pytest.mark.slow
def test_a_training_goes_on_without_a_killed_worker(run_tool: Callable, shapes: Path,
                                                    tmp_path: Path) -> None:
    (tmp_path / 'faulty.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\n'
        "custom_imports = dict(imports=['process_faults'])\n"
        'train_dataloader = dict(dataset=dict(pipeline=[dict(type="SampleFault", fault="kill", '
        f'count=3, done={str(tmp_path / "done")!r}), '
        '*_base_.train_dataloader.dataset.pipeline]))\n')
    run_tool('train', tmp_path / 'faulty.py', '--data-root', shapes / 'ade', '--work-dir',
             tmp_path / 'run', *SHORT[:1], 'train_cfg.max_iters=4', 'val_dataloader=None',
             'val_evaluator=None', 'val_cfg=None', 'default_hooks.checkpoint.interval=4',
             'train_dataloader.num_workers=2', 'train_dataloader.batch_size=2')
    assert not multiprocessing.active_children()
    log = latest_log(tmp_path / 'run')
    assert (tmp_path / 'done').exists() and (tmp_path / 'run/iter_4.pth').exists()
    assert '(SIGKILL, as for lack of memory) of the data loader died: all its workers' in log


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying_backend, 'PAUSES', (0.1, 0.1, 0.2))


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Path]:
    """A file whose reads fail with EIO, as of a broken disk: memory of a process where none is."""
    path = tmp_path / 'image.png'
    path.symlink_to('/proc/self/mem')
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EIO
    yield path


def read_in_shard(path: str) -> bytes:
    folder, name = os.path.split(path)
    return read_place(folder, Place(name, 0, 7, zlib.crc32(b'content')), 'image.png')


@pytest.mark.parametrize('read', [get, read_in_shard])
def test_a_disk_that_fails_for_a_while(read: Callable[[str], bytes], failing: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            (failing.parent / 'mended').write_bytes(b'content')
            os.replace(failing.parent / 'mended', failing)

    monkeypatch.setattr('colonnade.common.storage.retrying_backend.time.sleep', pause)
    assert read(str(failing)) == b'content' and pauses == list(retrying_backend.PAUSES[:2])


def test_a_disk_that_fails_for_good(failing: Path, short_pauses: None) -> None:
    with pytest.raises(OSError, match=r'Input/output error, in 4 attempts within 0.4 s: .*\.png'):
        get(str(failing))
    with pytest.raises(FileNotFoundError):  # at once
        get(str(failing.parent / 'absent'))
