"""The server without HTTP: batches of several users, limits, addresses."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from logging import FileHandler
from pathlib import Path
from threading import Event
from time import sleep
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from conftest import ROOT, run_python
from helpers.live_server import LIMITS, PATIENCE, build_random_model, encode_image
from helpers.random_models import random_checkpoint
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.inference.options import ServeOptions
from colonnade.inference.results import LabelMap
from colonnade.inference.serving.json_api import get_weights_name
from colonnade.inference.serving.server import Server, check_host, listen, load_models, serve
from colonnade.inference.serving.service import (ModelError, RequestTimeoutError, ServerBusyError,
                                                 Service, Worker, compute_max_pixels)
from colonnade.models.fusion import is_fused

LEAF = 'sem_fpn/xcit_nano_12_p16_slim_shapes'


class FakeModel:
    """A model that predicts the mean of an image, waits for ``gate`` and fails on black images."""
    module, bands = torch.nn.Identity(), None
    kind, classes, palette, default_batch_size = 'labels', ('a', 'b'), ((0, 0, 0), ) * 2, 2

    def __init__(self) -> None:
        self.gate, self.started = Event(), Event()
        self.batches: list[list[int]] = []

    def prepare(self, image: np.ndarray) -> dict[str, Any]:
        return dict(inputs=image)

    def run(self, batch: list[dict[str, Any]]) -> list[int]:
        self.started.set()
        self.gate.wait(PATIENCE)
        means = [int(item['inputs'].mean()) for item in batch]
        self.batches.append(means)
        if 0 in means:
            raise FloatingPointError('black')
        return means

    def build_result(self, sample: int) -> LabelMap:
        return LabelMap((1, 1), self.classes, self.palette, np.full((1, 1), sample, np.uint8))


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


def build_gray(value: int, width: int = 8) -> bytes:
    return encode_image(Image.new('RGB', (width, 8), (value, value, value)))


def test_worker_batches_similar_jobs() -> None:
    gate, batches = Event(), []

    def run(items: list[str]) -> list[str]:
        gate.wait(PATIENCE)
        batches.append(''.join(items))
        return [item.upper() for item in items]

    with closing(Worker(2)) as worker:
        first = worker.submit(run, 'x', None)
        futures = [worker.submit(run, item, item) for item in 'abaab']
        canceled = worker.submit(run, 'a', 'a')
        assert canceled.cancel()
        gate.set()
        assert [future.result(PATIENCE) for future in (first, *futures)] == list('XABAAB')
        assert worker.call(sum, [1, 2]).result(PATIENCE) == 3
    assert batches == ['x', 'aa', 'bb', 'a']
    with pytest.raises(RuntimeError, match='the server is shutting down'):
        worker.call(sum, [])


def test_each_user_gets_the_own_result(model: FakeModel) -> None:
    """Images of equal shape share batches; an error affects only one of them."""
    with closing(Service(model, LIMITS)) as service, ThreadPoolExecutor(9) as users:
        values = [10, 20, 0, 30, 40, 50]
        futures = [users.submit(service.predict, build_gray(v, 8 + v % 20)) for v in values]
        model.gate.set()
        for value, future in zip(values, futures, strict=True):
            if value:
                assert future.result(PATIENCE).result.labels[0, 0] == value
            else:
                with pytest.raises(ModelError, match='FloatingPointError: black'):
                    future.result(PATIENCE)
        assert service.predict(build_gray(60)).result.labels[0, 0] == 60


def test_too_many_requests_and_timeout(model: FakeModel) -> None:
    service = Service(model, LIMITS, capacity=2, timeout=PATIENCE)
    with closing(service), ThreadPoolExecutor(2) as users:
        first = users.submit(service.predict, build_gray(10))
        assert model.started.wait(PATIENCE)
        service.timeout = 0.2
        with pytest.raises(RequestTimeoutError, match='within 0.2 seconds'):
            service.predict(build_gray(20))
        service.timeout = PATIENCE
        last = users.submit(service.predict, build_gray(30, 9))
        while service._slots.num_taken < 2 and not last.done():
            sleep(0.01)
        with pytest.raises(ServerBusyError, match='too many requests at once'):
            service.predict(build_gray(40))
        model.gate.set()
        for future, value in ((first, 10), (last, 30)):
            assert future.result(PATIENCE).result.labels[0, 0] == value
    assert model.batches == [[10], [30]]


def test_requests_during_shutdown(model: FakeModel) -> None:
    with ThreadPoolExecutor(2) as users:
        with closing(Service(model, LIMITS)) as service:
            futures = [users.submit(service.predict, build_gray(value)) for value in (10, 20)]
            assert model.started.wait(PATIENCE)
            assert service.count_requests() and not service.is_ending
        futures.append(users.submit(service.predict, build_gray(30)))
        for future in futures:
            with pytest.raises(ServerBusyError, match='the server is shutting down'):
                future.result(PATIENCE)
        model.gate.set()


@pytest.mark.parametrize('kind, num_classes, expected', [('labels', 150, 3_333_333),
                                                         ('masks', 80, 20_000_000)])
def test_results_fit_into_memory(kind: str, num_classes: int, expected: int,
                                 model: FakeModel) -> None:
    model.kind, model.classes = kind, ('x', ) * num_classes
    assert compute_max_pixels(model) == expected


def test_fused_models_accept_larger_images(tmp_path: Path) -> None:
    """For figures, the model is loaded again without fusing."""
    options = ServeOptions(
        config=LEAF, checkpoint=random_checkpoint(LEAF, tmp_path / 'a.pth'), device='cpu')
    fused, load_plain = load_models(options)
    service = Service(fused, LIMITS, load_plain=load_plain)
    with closing(service):
        plain = service.call(service.load_plain)
        assert is_fused(fused.module) and not is_fused(plain.module)
        assert service.load_plain() is plain
    assert compute_max_pixels(plain) < compute_max_pixels(fused) == 2 * 10**9 // 12
    options.fuse = False
    fused, load_plain = load_models(options)
    assert load_plain is None and not is_fused(fused.module)


def test_other_loggers_stay_open(model: FakeModel, tmp_path: Path) -> None:
    with closing(FileHandler(tmp_path / 'run.log')) as log, \
            closing(Service(model, LIMITS)) as service:
        Server(None, service)
        assert log.stream


@pytest.mark.parametrize('name',
                         ['', 'https://a.example', 'a/b', '*', 'a.example:0', 'me@a', 'a b/'])
def test_allowed_hosts(name: str) -> None:
    with pytest.raises(UserError, match='--allowed-host must be a host name'):
        check_host(name)
    assert check_host('A.example:80') == 'a.example:80'


@pytest.mark.parametrize('options, error, message', [
    (dict(config='none',
          max_pixels=-1), ValueError, '--max-pixels must be positive and finite, got -1'),
    (dict(config='none', port=99999), ValueError, 'between 0 and 65535, got 99999'),
    (dict(config='none', host='192.0.2.1',
          port=80), OSError, 'cannot listen on 192.0.2.1, port 80'),
    (dict(config=LEAF, port=0), ValueError, f'no weights: pass the checkpoint .* after {LEAF}'),
    (dict(config='none', port=0), FileNotFoundError, 'no such config file: none'),
])
def test_invalid_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        serve(ServeOptions(**options), ModuleType('figures'))


def test_port_in_use() -> None:
    with closing(listen('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f'port {port} on 127.0.0.1 is already in use: .* --port'):
            serve(ServeOptions(config='none', port=port), ModuleType('figures'))


def test_fastapi_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith('colonnade.inference.serving')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(ValueError, match=r"needs fastapi: run pip install '\.\[serve\]'"):
        import_module('colonnade.inference.serving')


@pytest.mark.parametrize('source, name', [('work_dirs/a/iter_500.pth', 'iter_500.pth'),
                                          ('https://elsewhere.example/b.pth', 'b.pth'),
                                          ('shared/street/model.safetensors', 'street'),
                                          ('model.safetensors', Path.cwd().name)])
def test_names_of_weights(source: str, name: str) -> None:
    assert get_weights_name(source) == name


@pytest.mark.slow
@pytest.mark.parametrize('ending', [signal.SIGINT, signal.SIGTERM])
def test_process_starts_and_stops(ending: signal.Signals, tmp_path: Path) -> None:
    """An idle connection does not delay the shutdown, and no temporary file remains."""
    weights = tmp_path / 'weights.pth'
    torch.save(dict(state_dict=build_random_model('sem_fpn').module.state_dict()), weights)
    (tmp_path / 'tmp').mkdir()
    command = [sys.executable, '-W', 'ignore', 'tools/serve.py', LEAF, str(weights), '--port', '0']
    environ = {**os.environ, 'TMPDIR': str(tmp_path / 'tmp')}
    with subprocess.Popen(command, env=environ, cwd=ROOT, stdout=-1, stderr=-2, text=True) as tool:
        url = re.fullmatch(r'serving on (\S+) \(press Ctrl-C to stop\)\n',
                           tool.stdout.readline())[1]
        with httpx.Client() as client:  # keeps its connection open
            assert '<canvas' in client.get(url).text
            port = httpx.URL(url).port
            output = run_python('tools/serve.py', LEAF, weights, '--port', str(port), fail=True)
            assert output == (f'serve: port {port} on 127.0.0.1 is already in use: choose another '
                              f'with '
                              '--port\n')
            tool.send_signal(ending)
            assert tool.wait(20) == 0
        assert tool.stdout.read() == ''
    assert not list((tmp_path / 'tmp').glob('colonnade*'))
