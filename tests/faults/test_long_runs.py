"""Long runs hold no more at their end; disks and users that fail or crowd lose nothing."""
from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from conftest import SHORT, config
from helpers.live_server import build_random_model, draw_rectangles, encode_image, live_server
from helpers.measured_run import held
from mmengine.fileio import get
from torch.utils.data import DataLoader

from colonnade.common.storage import retrying_backend
from colonnade.common.storage.shard_index import Place
from colonnade.common.storage.shard_reader import read_place
from colonnade.engine.runner.loops import SeededIterationLoop, end_workers
from colonnade.models.fusion import fuse
from colonnade.models.half_precision import compute_in

SIDES = (64, 136, 208, 304, 400)  # oneDNN keeps kernels of some hundred sizes
GROWTH = 8  # MiB that a part of a run may hold more than the part before


@pytest.mark.slow
def test_training_memory_is_flat(run_tool: Callable, shapes: Path, tmp_path: Path) -> None:
    (tmp_path / 'measured.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\n'
        "custom_imports = dict(imports=['helpers.measured_run'])\n"
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
@pytest.mark.parametrize('dtype', [None, torch.bfloat16], ids=['float32', 'bfloat16'])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn', 'upernet'])
def test_prediction_memory_is_flat(head: str, fused: bool, dtype: torch.dtype | None) -> None:
    """300 images of 25 sizes, from pixels to results; a cache with an entry for each grows."""
    model, sizes, found = build_random_model(head), random.Random(0), []
    if fused:
        fuse(model.module, dtype)
    if dtype is not None:
        compute_in(model.module, dtype)
    for number in range(1, 301):
        image = np.random.default_rng(number).integers(
            0, 256, (sizes.choice(SIDES), sizes.choice(SIDES), 3), dtype=np.uint8)
        model.predict(image)
        if number % 100 == 0:
            found.append((held(), len(os.listdir('/proc/self/fd'))))
    print(head, fused, dtype, [f'{mib:.0f} MiB, {files} files' for mib, files in found])
    assert found[-1][0] < found[1][0] + GROWTH and found[-1][1] <= found[1][1]


@pytest.mark.slow
def test_server_memory_is_flat() -> None:
    """1,000 images to the server, a quarter of which it refuses."""
    images = [encode_image(draw_rectangles(seed, (64, 48))) for seed in range(30)]
    images += [b'no image'] * 10
    found = []
    with live_server(build_random_model('sem_fpn')) as live, httpx.Client(timeout=60) as client:
        for number in range(1, 1001):
            answer = client.post(f'{live.url}/api/predict', content=images[number % len(images)])
            assert answer.status_code == (200 if number % len(images) < 30 else 415)
            if number % 250 == 0:
                found.append((held(), len(os.listdir('/proc/self/fd')), threading.active_count()))
    print([f'{mib:.0f} MiB, {files} files, {threads} threads' for mib, files, threads in found])
    assert found[-1][0] < found[1][0] + GROWTH
    assert found[-1][1:] <= found[1][1:]


@pytest.mark.slow
def test_200_concurrent_users() -> None:
    """Each gets the answer to the own image; those that are told to come again do so."""
    model = build_random_model('mask_rcnn')
    images = [draw_rectangles(seed, (64, 48)) for seed in range(40)]
    alone = [model.predict(image).filter_by_score(0.6) for image in images]
    assert len({expected.boxes.tobytes() for expected in alone}) > 30
    start, refused = threading.Barrier(200), []

    def ask(number: int) -> dict[str, Any]:
        start.wait()
        content = encode_image(images[number % 40])
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


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_end_with_run(persistent: bool) -> None:
    others = multiprocessing.active_children()
    data: Any = range(8)
    loader = DataLoader(data, 2, num_workers=2, persistent_workers=persistent)
    runner: Any = SimpleNamespace(visualizer=SimpleNamespace())
    loop = SeededIterationLoop(runner, loader, max_iters=4)
    assert loop.batches is not None
    loop.batches.start(seed=0, iteration=0, skip=0)
    found = [next(loop.dataloader_iterator).tolist() for _ in range(2)]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    workers = [each for each in multiprocessing.active_children() if each not in others]
    assert len(workers) == (4 if persistent else 2) and found == [[0, 1], [2, 3]]
    end_workers(loop, None)
    assert not any(worker.is_alive() for worker in workers)
    assert next(loop.dataloader_iterator).tolist() == [0, 1]
    end_workers(loop)


@pytest.mark.slow
def test_killed_worker_ends_training(run_tool: Callable, shapes: Path, tmp_path: Path) -> None:
    (tmp_path / 'faulty.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\n'
        "custom_imports = dict(imports=['helpers.process_faults'])\n"
        'train_dataloader = dict(dataset=dict(pipeline=[dict(type="SampleFault", fault="kill", '
        'count=20), *_base_.train_dataloader.dataset.pipeline]))\n')
    with pytest.raises(RuntimeError, match=r'DataLoader worker \(pid \d+\) is killed by signal'):
        run_tool('train', tmp_path / 'faulty.py', '--data-root', shapes / 'ade', '--work-dir',
                 tmp_path / 'run', *SHORT[:1], 'train_cfg.max_iters=99', 'val_dataloader=None',
                 'val_evaluator=None', 'val_cfg=None', 'default_hooks.checkpoint.interval=4',
                 'train_dataloader.num_workers=2', 'train_dataloader.batch_size=2')
    assert list((tmp_path / 'run').glob('iter_*.pth'))


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
def test_read_is_retried(read: Callable[[str], bytes], failing: Path,
                         monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            (failing.parent / 'mended').write_bytes(b'content')
            os.replace(failing.parent / 'mended', failing)

    monkeypatch.setattr('colonnade.common.storage.retrying_backend.time.sleep', pause)
    assert read(str(failing)) == b'content' and pauses == list(retrying_backend.PAUSES[:2])


def test_read_fails_after_retries(failing: Path, short_pauses: None) -> None:
    with pytest.raises(OSError, match=r'Input/output error, in 4 attempts within 0.4 s: .*\.png'):
        get(str(failing))
    with pytest.raises(FileNotFoundError):  # at once
        get(str(failing.parent / 'absent'))
