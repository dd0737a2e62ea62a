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
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from conftest import ROOT, run_python
from helpers.live_server import LIMITS, PATIENCE, file_of, random_model
from helpers.random_models import random_checkpoint
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.inference.results import LabelMap
from colonnade.inference.serving import ServeOptions, serve
from colonnade.inference.serving.json_api import get_weights_name
from colonnade.inference.serving.server import Server, check_host, listen, load_models
from colonnade.inference.serving.service import (ModelError, RequestTimeoutError, ServerBusyError,
                                                 Service, affordable_pixels)
from colonnade.inference.serving.worker import Worker
from colonnade.models.fusion import is_fused


class StandIn:
    """Answers the mean of an image; ``gate`` holds it up, black images break it."""
    module = torch.nn.Identity()
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

    def result(self, sample: int) -> LabelMap:
        return LabelMap((1, 1), self.classes, self.palette, np.full((1, 1), sample, np.uint8))


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


def grey(value: int, width: int = 8) -> bytes:
    return file_of(Image.new('RGB', (width, 8), (value, value, value)))


def test_the_worker_takes_what_is_alike() -> None:
    gate, batches = Event(), []

    def run(items: list[str]) -> list[str]:
        gate.wait(PATIENCE)
        batches.append(''.join(items))
        return [item.upper() for item in items]

    with closing(Worker(2)) as worker:
        first = worker.submit(run, 'x', None)
        futures = [worker.submit(run, item, item) for item in 'abaab']
        dropped = worker.submit(run, 'a', 'a')
        assert dropped.cancel()
        gate.set()
        assert [future.result(PATIENCE) for future in (first, *futures)] == list('XABAAB')
        assert worker.call(sum, [1, 2]).result(PATIENCE) == 3
    assert batches == ['x', 'aa', 'bb', 'a']
    with pytest.raises(RuntimeError, match='the server ends'):
        worker.call(sum, [])


def test_answers_are_those_of_the_users(stand_in: StandIn) -> None:
    """Images of equal shape share batches; one that fails fails alone."""
    with closing(Service(stand_in, LIMITS)) as service, ThreadPoolExecutor(9) as users:
        values = [10, 20, 0, 30, 40, 50]
        futures = [users.submit(service.predict, grey(v, 8 + v % 20)) for v in values]
        stand_in.gate.set()
        for value, future in zip(values, futures, strict=True):
            if value:
                assert future.result(PATIENCE).result.labels[0, 0] == value
            else:
                with pytest.raises(ModelError, match='FloatingPointError: black'):
                    future.result(PATIENCE)
        assert service.predict(grey(60)).result.labels[0, 0] == 60


def test_too_many_users_and_too_long(stand_in: StandIn) -> None:
    service = Service(stand_in, LIMITS, capacity=2, timeout=PATIENCE)
    with closing(service), ThreadPoolExecutor(2) as users:
        first = users.submit(service.predict, grey(10))
        assert stand_in.started.wait(PATIENCE)
        service.timeout = 0.2
        with pytest.raises(RequestTimeoutError, match='within 0.2 seconds'):  # is not computed
            service.predict(grey(20))
        service.timeout = PATIENCE
        last = users.submit(service.predict, grey(30, 9))
        while service._places.num_taken < 2 and not last.done():
            sleep(0.01)
        with pytest.raises(ServerBusyError, match='too many requests at once'):
            service.predict(grey(40))
        stand_in.gate.set()
        for future, value in ((first, 10), (last, 30)):
            assert future.result(PATIENCE).result.labels[0, 0] == value
    assert stand_in.batches == [[10], [30]]


@pytest.mark.parametrize('kind, classes, most', [('labels', 150, 3_333_333),
                                                 ('masks', 80, 20_000_000)])
def test_answers_fit_in_memory(kind: str, classes: int, most: int, stand_in: StandIn) -> None:
    stand_in.kind, stand_in.classes = kind, ('x', ) * classes
    assert affordable_pixels(stand_in) == most


def test_fused_models_take_larger_images_and_are_loaded_for_pictures(tmp_path: Path) -> None:
    leaf = 'sem_fpn/xcit_nano_12_p16_slim_shapes'
    options = ServeOptions(
        config=leaf, checkpoint=random_checkpoint(leaf, tmp_path / 'a.pth'), device='cpu')
    model, load_plain = load_models(options)
    service = Service(model, LIMITS, load_plain=load_plain)
    with closing(service):
        plain = service.call(service.load_plain)
        assert is_fused(model.module) and not is_fused(plain.module)
        assert service.load_plain() is plain
    assert affordable_pixels(plain) < affordable_pixels(model) == 2 * 10**9 // 12
    options.fuse = False
    model, load_plain = load_models(options)
    assert load_plain is None and not is_fused(model.module)


def test_logs_of_others_stay_open(stand_in: StandIn, tmp_path: Path) -> None:
    with closing(FileHandler(tmp_path / 'run.log')) as log, \
            closing(Service(stand_in, LIMITS)) as service:
        Server(None, service)
        assert log.stream


def test_what_is_computed_at_the_end_is_given_up(stand_in: StandIn) -> None:
    """Its thread may last; whoever waits for it hears of the end, and not of a fault."""
    with ThreadPoolExecutor(2) as users:
        with closing(Service(stand_in, LIMITS)) as service:
            futures = [users.submit(service.predict, grey(value)) for value in (10, 20)]
            assert stand_in.started.wait(PATIENCE)
            assert service.is_working() and not service.ending
        for future in futures:
            with pytest.raises(ServerBusyError, match='the server ends'):
                future.result(PATIENCE)
        with pytest.raises(ServerBusyError, match='the server ends'):
            service.predict(grey(30))
        stand_in.gate.set()


@pytest.mark.parametrize('name',
                         ['', 'https://a.example', 'a/b', '*', 'a.example:0', 'me@a', 'a b/'])
def test_allowed_hosts_are_names(name: str) -> None:
    with pytest.raises(UserError, match='--allowed-host must be a name'):
        check_host(name)
    assert check_host('A.example:80') == 'a.example:80'


def test_a_port_in_use_is_named() -> None:
    with closing(listen('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f'port {port} of 127.0.0.1 is in use: .* --port'):
            serve(ServeOptions(config='none', port=port), dict)
    with pytest.raises(OSError, match='cannot listen on 192.0.2.1, port 80'):
        listen('192.0.2.1', 80)
    with pytest.raises(ValueError, match='from 0 to 65535, got 99999'):
        listen('127.0.0.1', 99999)


def test_senseless_numbers_and_no_fastapi(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='--max-pixels must be positive and finite, got -1'):
        serve(ServeOptions(config='none', max_pixels=-1), dict)
    for name in [name for name in sys.modules if name.startswith('colonnade.inference.serving')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(ValueError, match=r"needs fastapi: run pip install '\.\[serve\]'"):
        import_module('colonnade.inference.serving')


def test_a_config_alone_is_not_enough() -> None:
    leaf = 'sem_fpn/xcit_nano_12_p16_slim_shapes'
    with pytest.raises(ValueError, match=f'no weights: name the file .* after {leaf}'):
        serve(ServeOptions(config=leaf, port=0), dict)
    with pytest.raises(FileNotFoundError, match='no config file none'):
        serve(ServeOptions(config='none', port=0), dict)


@pytest.mark.parametrize('source, name', [('work_dirs/a/iter_500.pth', 'iter_500.pth'),
                                          ('https://elsewhere.example/b.pth', 'b.pth'),
                                          ('shared/street/model.safetensors', 'street'),
                                          ('model.safetensors', Path.cwd().name)])
def test_weights_are_named(source: str, name: str) -> None:
    assert get_weights_name(source) == name


@pytest.mark.slow
@pytest.mark.parametrize('ending', [signal.SIGINT, signal.SIGTERM])
def test_the_tool_starts_and_ends(ending: signal.Signals, tmp_path: Path) -> None:
    """An idle connection does not delay the end, and no temporary file is left."""
    leaf, weights = 'sem_fpn/xcit_nano_12_p16_slim_shapes', tmp_path / 'weights.pth'
    torch.save(dict(state_dict=random_model('sem_fpn').module.state_dict()), weights)
    (tmp_path / 'tmp').mkdir()
    command = [sys.executable, '-W', 'ignore', 'tools/serve.py', leaf, str(weights), '--port', '0']
    environ = {**os.environ, 'TMPDIR': str(tmp_path / 'tmp')}
    with subprocess.Popen(command, env=environ, cwd=ROOT, stdout=-1, stderr=-2, text=True) as tool:
        url = re.fullmatch(r'serving on (\S+) \(Ctrl-C ends\)\n', tool.stdout.readline())[1]
        with httpx.Client() as client:  # its connection is open meanwhile
            assert '<canvas' in client.get(url).text
            port = httpx.URL(url).port
            done = run_python('tools/serve.py', leaf, weights, '--port', str(port), fail=True)
            assert done == (f'serve: port {port} of 127.0.0.1 is in use: choose another with '
                            '--port\n')
            tool.send_signal(ending)
            assert tool.wait(20) == 0
        assert tool.stdout.read() == ''
    assert not list((tmp_path / 'tmp').glob('colonnade*'))
