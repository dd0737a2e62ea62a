"""What operators of a server need: probes, metrics, access log, token, root path, batches."""
from __future__ import annotations

import asyncio
import json
import re
import socket
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import closing
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import httpx
import pytest
import yaml
from conftest import ROOT
from helpers.live_server import (LIMITS, PATIENCE, build_random_model, draw_rectangles,
                                 encode_image, live_server)
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from colonnade.common.errors import UserError
from colonnade.inference.options import ServeOptions
from colonnade.inference.serving import server
from colonnade.inference.serving.access_log import AccessLog
from colonnade.inference.serving.middleware import PROBES
from colonnade.inference.serving.server import build_app, check_root_path, check_token
from colonnade.inference.serving.service import Service, Worker
from colonnade.tools.command_line import parse_options
from colonnade.visualization import figures

CONTENT = encode_image(draw_rectangles(0))


@pytest.fixture(scope='module')
def model() -> Any:
    return build_random_model('sem_fpn')


@pytest.fixture
def service(model: Any) -> Iterator[Service]:
    with closing(Service(model, LIMITS)) as running:
        yield running


def build_client(service: Service, **settings: Any) -> TestClient:
    app = build_app(service, figures, loopback=True, **settings)
    return TestClient(app, base_url='http://localhost')


def read_metrics(client: TestClient) -> dict[tuple[str, ...], float]:
    """Return the values of metrics by name and labels, sorted by the names of the labels."""
    families = text_string_to_metric_families(client.get('/metrics').text)
    return {(sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
            for family in families for sample in family.samples}  # yapf: disable


def test_metrics(service: Service) -> None:
    client = build_client(service)
    assert client.post('/api/predict', content=CONTENT).status_code == 200
    assert client.post('/api/predict', content=b'x').status_code == 415
    assert client.get('/api/figures/../../etc').status_code == 404
    found = read_metrics(client)
    assert found['colonnade_requests_total', '/api/predict', '200'] == 1
    assert found['colonnade_requests_total', '/api/predict', '415'] == 1
    assert found['colonnade_requests_total', 'other', '404'] == 1
    assert found['colonnade_request_seconds_count', '/api/predict'] == 2
    for stage in ('decoding', 'waiting', 'model'):
        assert found['colonnade_stage_seconds_count', stage] == 1
    assert 0 < found['colonnade_stage_seconds_sum', 'model'] < PATIENCE
    assert found[
        'colonnade_batch_images_count',
    ] == found[
        'colonnade_batch_images_sum',
    ] == 1
    assert found[
        'colonnade_requests_in_progress',
    ] == found[
        'colonnade_waiting_images',
    ] == 0
    assert found[
        'process_resident_memory_bytes',
    ] > 10**8


def test_readiness(service: Service) -> None:
    client = build_client(service)
    for path in PROBES:
        assert client.get(path).json() == dict(status='ok')
    service._worker.close()
    service._worker._thread.join(PATIENCE)
    for path in PROBES:
        assert client.get(path).status_code == 503
    service.is_ending = True  # from then on it is not an error that the thread has ended
    assert client.get('/healthz').json() == dict(status='ok')
    assert client.get('/readyz').status_code == 503


def test_token(service: Service) -> None:
    client = build_client(service, token='secret', page=False)
    for headers in ({}, dict(authorization='Bearer wrong'), dict(authorization='Bearer sécret'),
                    dict(authorization='Basic secret')):  # yapf: disable
        encoded = {key: value.encode() for key, value in headers.items()}
        for path in ('/api/model', '/metrics', '/'):
            answer = client.get(path, headers=encoded)
            assert answer.status_code == 401 and answer.headers['www-authenticate'] == 'Bearer'
    assert client.post('/api/predict', content=CONTENT).status_code == 401
    assert client.get('/healthz').is_success and client.get('/readyz').is_success
    client.headers['authorization'] = 'Bearer secret'
    assert client.post('/api/predict', content=CONTENT).is_success
    assert client.get('/').status_code == 404
    client.headers['authorization'] = 'bearer  secret'
    assert client.get('/api/model').is_success


def test_metrics_of_any_host(service: Service) -> None:
    """Prometheus requests them by the address of the pod, with the token."""
    app = build_app(service, figures, loopback=False, allowed_hosts=('a.example', ), token='secret')
    client = TestClient(app, base_url='http://10.0.0.7:7860')
    client.headers['authorization'] = 'Bearer secret'
    assert client.get('/metrics').is_success
    assert client.get('/api/model').status_code == 421


def test_unexpected_errors_are_recorded(service: Service, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(image: Any) -> Any:
        raise KeyError('a defect')

    monkeypatch.setattr(service.model, 'prepare', fail)
    with closing(AccessLog(tmp_path / 'a.log')) as log:
        app = build_app(service, figures, loopback=True, access_log=log)
        client = TestClient(app, base_url='http://localhost', raise_server_exceptions=False)
        assert client.post('/api/predict', content=CONTENT).status_code == 500
    assert json.loads((tmp_path / 'a.log').read_text())['status'] == 500
    assert read_metrics(client)['colonnade_requests_total', '/api/predict', '500'] == 1


@pytest.mark.parametrize('token', ['', 'with space', 'é', 'a\nb', '='])
def test_invalid_tokens(token: str) -> None:
    with pytest.raises(UserError, match='letters, digits'):
        check_token(token)


def test_valid_tokens() -> None:
    assert check_token(None) is None
    assert check_token('aZ09-._~+/==') == 'aZ09-._~+/=='


def test_access_log(service: Service, tmp_path: Path) -> None:
    with closing(AccessLog(tmp_path / 'access.log')) as log:
        client = build_client(service, access_log=log)
        size = len(client.get('/api/model').content)
        client.get('/a"%0A%1B')
        (tmp_path / 'access.log').rename(tmp_path / 'access.log.1')  # as logrotate does
        client.post('/api/predict?opacity=0.1', content=CONTENT)
    first, second = map(json.loads, (tmp_path / 'access.log.1').read_text().splitlines())
    assert first.pop('seconds') >= 0 and first.pop('time').endswith('+00:00')
    expected = dict(client='testclient', method='GET', path='/api/model', status=200, bytes=size)
    assert first == expected
    assert (second['path'], second['status']) == ('/a"\n\x1b', 404)
    third = json.loads((tmp_path / 'access.log').read_text())
    assert (third['method'], third['path'], third['status']) == ('POST', '/api/predict', 200)


def test_access_log_whose_folder_is_removed(service: Service, tmp_path: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'logs').mkdir()
    with closing(AccessLog(tmp_path / 'logs/a.log')) as log:
        client = build_client(service, access_log=log)
        (tmp_path / 'logs').rename(tmp_path / 'old')
        assert client.get('/api/model').is_success
    assert 'FileNotFoundError' in capsys.readouterr().err


def test_access_log_in_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='access log .*none/a.log: No such file'):
        AccessLog(tmp_path / 'none/a.log')


def test_root_path(model: Any) -> None:
    """A proxy removes the root path; the server must find its routes, and limit uploads."""
    with live_server(model, root_path='/models/a') as live:
        assert httpx.get(f'{live.url}/').text.lower().startswith('<!doctype html>')
        answer = httpx.post(f'{live.url}/api/predict', content=CONTENT, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        servers = httpx.get(f'{live.url}/api/openapi.json').json()['servers']
        assert servers == [dict(url='/models/a')]
        found = live.service.metrics.registry.get_sample_value(
            'colonnade_requests_total', dict(route='/api/predict', status='200'))
        assert found == 1


@pytest.mark.parametrize('path, expected', [('', ''), ('/', ''), ('/a/b-c.d/', '/a/b-c.d')])
def test_valid_root_paths(path: str, expected: str) -> None:
    assert check_root_path(path) == expected


@pytest.mark.parametrize('path', ['a', '//a', '/a b', 'http://a/b', '/a?b'])
def test_invalid_root_paths(path: str) -> None:
    with pytest.raises(UserError, match='--root-path must be the path of a URL'):
        check_root_path(path)


def test_responses_are_sent_at_once() -> None:
    """Head and body are two writes; Nagle's algorithm would hold the second one for 40 ms."""
    found = []

    async def handle(reader: Any, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info('socket')
        found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect(listener: socket.socket) -> None:
        async with await asyncio.start_server(handle, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await reader.read()
            writer.close()

    with closing(server.listen('127.0.0.1', 0)) as listener:
        asyncio.run(connect(listener))
    assert found and found[0]


def test_batches_wait_for_further_images() -> None:
    batches: list[int] = []

    def run(items: list[Any]) -> list[Any]:
        batches.append(len(items))
        return items

    with closing(Worker(3, patience=PATIENCE)) as worker:  # a full batch does not wait
        futures = [worker.submit(run, index, 'a') for index in range(3)]
        assert [future.result(PATIENCE / 2) for future in futures] == [0, 1, 2]
    with closing(Worker(3, patience=0.01)) as worker:
        assert worker.submit(run, 4, 'a').result(PATIENCE) == 4
    assert batches == [3, 1]


def test_figures_and_late_images_do_not_wait() -> None:
    with closing(Worker(2, patience=1e3)) as worker:
        assert worker.call(sum, [1, 2]).result(PATIENCE) == 3
    with closing(Worker(2, patience=1.)) as worker:
        start = monotonic()
        sizes = [worker.submit(lambda items: items, index, index) for index in range(5)]
        assert [future.result(PATIENCE) for future in sizes] == list(range(5))
        assert monotonic() - start < 4.  # they wait at the same time, not one after another


def test_canceled_images_take_no_place() -> None:
    batches: list[list[int]] = []

    def run(items: list[int]) -> list[int]:
        batches.append(items)
        return items

    gate = Event()
    with closing(Worker(2)) as worker:
        first = worker.call(gate.wait, PATIENCE)
        futures = [worker.submit(run, index, 'a') for index in range(3)]
        assert futures[0].cancel()
        assert worker.count_waiting() <= 3
        gate.set()
        assert first.result(PATIENCE)
        assert [future.result(PATIENCE) for future in futures[1:]] == [1, 2]
    assert batches == [[1, 2]]


def test_closing_does_not_wait_for_a_batch() -> None:
    with closing(Worker(2, patience=1e6)) as worker:
        future = worker.submit(lambda items: items, 0, 'a')
    Event().wait(0.01)
    worker._thread.join(PATIENCE)
    assert not worker._thread.is_alive() and future.cancelled()


@pytest.mark.parametrize('arguments, message', [
    (('--batch-ms', '-1'), '--batch-ms must not be negative'),
    (('--batch-ms', '1e10'), 'less than --timeout, got 1e'),
    (('--root-path', 'a'), '--root-path must be'),
    (('--token', 'a b'), '--token or COLONNADE_TOKEN must consist of'),
    (('--access-log', '/no/folder/a.log'), 'cannot write the access log'),
])
def test_invalid_options(arguments: tuple[str, ...], message: str, tmp_path: Path,
                         run_tool: Callable) -> None:
    weights = tmp_path / 'a.pth'  # not read
    weights.touch()
    config = 'sem_fpn/xcit_nano_12_p16_slim_shapes'
    with pytest.raises(SystemExit, match=message):
        run_tool('serve', config, weights, '--port', 0, *arguments)


EXAMPLES = ROOT / 'docs/examples'


def parse_example(words: list[str]) -> ServeOptions:
    return parse_options(ArgumentParser(), ServeOptions, words=words)


def test_examples_of_deployment() -> None:
    """All serve a packaged model; the probes of Kubernetes are routes that need no token."""
    lines = (EXAMPLES / 'Dockerfile').read_text().splitlines()
    steps = {line.partition(' ')[0]: line.partition(' ')[2] for line in lines if line[0] != '#'}
    assert json.loads(steps['ENTRYPOINT']) == ['colonnade', 'serve']
    assert parse_example(json.loads(steps['CMD'])).config == Path('/model')
    assert steps['EXPOSE'] == str(ServeOptions(config=Path()).port)
    ignored = (EXAMPLES / 'Dockerfile.dockerignore').read_text().splitlines()
    rooms = re.search(r'ROOMS = (.*?)\n#', (ROOT / 'Makefile').read_text(), re.DOTALL)
    assert rooms and {f'!{room}' for room in rooms[1].replace('\\', '').split()} <= {*ignored}
    for word in steps['RUN'].split():
        assert not word.endswith('.py') or (ROOT / word).is_file()

    unit = ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLES / 'serve.service')
    command = unit['Service']['ExecStart'].split()
    assert command[1] == 'serve'
    assert str(parse_example(command[2:]).access_log) == '-'
    assert int(unit['Service']['TimeoutStopSec']) > server.SECONDS_TO_FINISH

    deployment, service, monitor = yaml.safe_load_all((EXAMPLES / 'serve.yaml').read_text())
    pod = deployment['spec']['template']
    assert pod['spec']['terminationGracePeriodSeconds'] > server.SECONDS_TO_FINISH
    container, = pod['spec']['containers']
    assert parse_example(container['args']).host == '0.0.0.0'
    assert container['env'][0]['name'] == server.TOKEN_VARIABLE
    assert {container[f'{kind}Probe']['httpGet']['path']
            for kind in ('startup', 'readiness', 'liveness')} == set(PROBES)  # yapf: disable
    assert {mount['name'] for mount in container['volumeMounts']} == {
        volume['name'] for volume in pod['spec']['volumes']}  # yapf: disable
    labels = pod['metadata']['labels']
    assert deployment['spec']['selector']['matchLabels'] == service['spec']['selector'] == labels
    assert monitor['spec']['selector']['matchLabels'] == service['metadata']['labels']
    assert monitor['spec']['endpoints'][0]['port'] == service['spec']['ports'][0]['name']
