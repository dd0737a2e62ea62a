"""The server over HTTP: its API, what it accepts, and what it refuses."""
from __future__ import annotations

import re
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import BytesIO
from itertools import count
from threading import Event
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.live_server import (LIMITS, PATIENCE, Live, file_of, live_server, random_model,
                                 shapes_image)
from PIL import Image
from pycocotools import mask as coco_masks
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from colonnade.inference.serving import connection_limits, middleware, server
from colonnade.inference.serving.json_api import build_api
from colonnade.inference.serving.middleware import RequestGuard
from colonnade.inference.serving.service import Service
from colonnade.inference.serving.uploads import Limits, UploadError, read_upload
from colonnade.visualization import figures

PICTURE = shapes_image(0)


def claiming(width: int, height: int) -> bytes:
    """A PNG that says it is large, and is not."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack('>I', zlib.crc32(kind + data))
        return struct.pack('>I', len(data)) + kind + data + checksum

    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) +
            chunk(b'IDAT', zlib.compress(b'\0' * 99)) + chunk(b'IEND', b''))


BROKEN = {  # content, status, message
    'nothing': (b'', 400, 'the file is empty'),
    'text': (b'no image at all\n' * 9, 415, 'no image that can be read'),
    'EPS': (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n', 415, 'no image that'),
    'SVG': (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 415, 'no image that'),
    'a part': (file_of(shapes_image(1), 'JPEG')[:-200], 400, 'truncated'),
    'a head': (file_of(PICTURE)[:50], 400, 'truncated'),
    'many pixels': (claiming(1001, 1000), 413, '1001 x 1000 pixels, more than the 1000000'),
    'a bomb': (claiming(60_000, 60_000), 413, 'more than 1000000 pixels'),
    'many bytes': (b'\0' * (10**6 + 1), 413, 'more than the 1 MB'),
    'a line': (file_of(Image.new('RGB', (9000, 1))), 400, '1 x 9000 pixels does not pass'),
    'floats': (file_of(Image.new('F', (9, 9)), 'TIFF'), 400,
               'the image cannot be used: its values are floating-point numbers'),
}
FRAMES = [Image.new('RGB', (40, 30), colour) for colour in ('red', 'blue')]
UNUSUAL = {
    '1 x 1': file_of(Image.new('RGB', (1, 1))),
    'wide': file_of(Image.new('RGB', (3000, 180))),
    'CMYK': file_of(PICTURE.convert('CMYK'), 'JPEG'),
    'animated': file_of(FRAMES[0], 'GIF', save_all=True, append_images=FRAMES[1:]),
    'transparent': file_of(PICTURE.convert('RGBA'), 'WEBP'),
    '16 bits': file_of(Image.fromarray(np.full((20, 30), 9999, np.uint16)), 'TIFF'),
}


@pytest.fixture(scope='module')
def live() -> Iterator[Live]:
    with live_server(random_model('mask_rcnn'), batch_size=3) as running:
        yield running


def post(live: Live, content: bytes, **query: Any) -> httpx.Response:
    return httpx.post(f'{live.url}/api/predict', content=content, params=query, timeout=PATIENCE)


def test_pixels_are_limited_before_they_are_decoded() -> None:
    with pytest.raises(UploadError, match='413|pixels') as caught:
        read_upload(claiming(30_000, 1000), Limits())
    assert caught.value.status == 413


@pytest.mark.parametrize('name', BROKEN)
def test_broken_files_are_refused(name: str, live: Live) -> None:
    content, status, message = BROKEN[name]
    answer = post(live, content)
    assert (answer.status_code, message in answer.json()['detail']) == (status, True), answer.text


@pytest.mark.parametrize('name', UNUSUAL)
def test_unusual_images_are_taken(name: str, live: Live) -> None:
    answer = post(live, UNUSUAL[name])
    assert answer.status_code == 200, answer.text


def test_the_api_says_what_the_model_is(live: Live) -> None:
    assert httpx.get(f'{live.url}/health', timeout=PATIENCE).json() == dict(status='ok')
    about = httpx.get(f'{live.url}/api/model', timeout=PATIENCE).json()
    assert (about['model'], about['backbone'], about['arch']) == ('MaskRCNN', 'XCiT', 'nano_12_p16')
    assert about['weights'] == 'weights.pth' and about['max_pixels'] == LIMITS.max_pixels
    described = httpx.get(f'{live.url}/api/openapi.json', timeout=PATIENCE).json()
    assert set(described['paths']) == {
        '/health', '/api/model', '/api/predict', '/api/image', '/api/figures/{name}'
    }


def test_the_api_answers_as_the_model(live: Live) -> None:
    expected = live.model.predict(PICTURE).above(0.6)
    assert len(expected)
    answer = post(live, file_of(PICTURE), threshold=0.6, masks='rle').json()
    assert (answer['height'], answer['width']) == expected.size
    assert [found['class'] for found in answer['instances']] == list(expected.names)
    np.testing.assert_allclose([found['box'] for found in answer['instances']],
                               expected.boxes,
                               atol=0.01)
    masks = [coco_masks.decode(found['mask']) for found in answer['instances']]
    np.testing.assert_array_equal(masks, expected.decode_masks())
    assert 'mask' not in post(live, file_of(PICTURE), threshold=0.6).json()['instances'][0]
    assert answer['seconds'].keys() == {'decoding', 'waiting', 'model'}


def test_forms_and_drawings(live: Live) -> None:
    form = dict(image=('any.png', file_of(PICTURE)))
    drawn = httpx.post(
        f'{live.url}/api/predict?format=png&threshold=0.6', files=form, timeout=PATIENCE)
    assert drawn.headers['content-type'] == 'image/png'
    expected = live.model.predict(PICTURE).draw(PICTURE, threshold=0.6)
    np.testing.assert_array_equal(Image.open(BytesIO(drawn.content)), expected)
    empty = httpx.post(f'{live.url}/api/predict', files=dict(x=(None, 'text')), timeout=PATIENCE)
    assert empty.status_code == 400 and '-F image=@FILE' in empty.json()['detail']
    form['opacity'] = (None, '0.2')  # type: ignore[assignment]
    refused = httpx.post(f'{live.url}/api/predict', files=form, timeout=PATIENCE)
    assert refused.status_code == 422 and 'part of the URL' in refused.json()['detail']


@pytest.mark.parametrize('query, message', [
    (dict(threshold=50), 'threshold must be from 0 to 1, got 50'),
    (dict(opacity='half'), 'opacity must be from 0 to 1, got half'),
    (dict(masks='png', format=''),
     'masks must be none or rle, got png; format must be json or png, got '),
    (dict(treshold=0.5),
     'this model has no parameter treshold: it has threshold, opacity, masks, format'),
])  # yapf: disable
def test_parameters_are_checked(query: dict[str, Any], message: str, live: Live) -> None:
    answer = post(live, file_of(PICTURE), **query)
    assert (answer.status_code, answer.json()) == (422, dict(detail=message))


def test_segmenters_have_no_threshold() -> None:
    with closing(Service(random_model('sem_fpn'), LIMITS)) as service:
        client = TestClient(build_api(service, figures))
        answer = client.post('/api/predict?threshold=0.5', content=file_of(PICTURE))
        assert (answer.status_code, answer.json()['detail']) == (
            422, 'this model has no parameter threshold: it has opacity, masks, format')
        assert client.post('/api/predict?opacity=0.2', content=file_of(PICTURE)).is_success


@pytest.mark.parametrize('method, path, allowed', [('GET', '/api/predict', 'POST'),
                                                   ('POST', '/api/model', 'GET'),
                                                   ('DELETE', '/health', 'GET')])
def test_other_methods_are_refused(method: str, path: str, allowed: str, live: Live) -> None:
    answer = httpx.request(method, live.url + path, timeout=PATIENCE)
    assert (answer.status_code, answer.headers['allow']) == (405, allowed)
    assert answer.json()['detail'] == f'{path} takes {allowed}, got {method}'


def test_many_users_at_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets the answer to the own image, of whatever shape, as if alone."""
    images = [shapes_image(seed, (96, 64) if seed % 3 else (64, 96)) for seed in range(6)]
    alone = [live.model.predict(image).above(0.6) for image in images]
    start, arrived, all_arrived = len(live.model.batches), count(1), Event()
    prepare, run = live.model.prepare, live.model.run

    def arrive(image: np.ndarray) -> Any:
        prepared = prepare(image)
        if next(arrived) == len(images):
            all_arrived.set()
        return prepared

    monkeypatch.setattr(live.model, 'prepare', arrive)
    monkeypatch.setattr(live.model, 'run', lambda batch: all_arrived.wait(PATIENCE) and run(batch))
    with ThreadPoolExecutor(6) as users:
        answers = list(
            users.map(lambda image: post(live, file_of(image), threshold=0.6).json(), images))
    assert max(live.model.batches[start:]) > 1
    for answer, expected in zip(answers, alone, strict=True):
        assert (answer['height'], answer['width']) == expected.size
        assert [found['class'] for found in answer['instances']] == list(expected.names)
        np.testing.assert_allclose([found['box'] for found in answer['instances']],
                                   expected.boxes.reshape(-1, 4),
                                   atol=0.1)


@pytest.mark.parametrize('path', ['/docs', '/page', '/page.html', '/../page.py', '/api', '/config'])
def test_other_routes_do_not_exist(path: str, live: Live) -> None:
    answer = httpx.get(live.url + path, timeout=PATIENCE)
    assert (answer.status_code, answer.json()['detail']) == (404, 'Not Found')


@pytest.mark.parametrize('path, media_type', [('/', 'text/html'), ('/page.css', 'text/css'),
                                              ('/page.js', 'text/javascript'),
                                              ('/icon.svg', 'image/svg+xml')])
def test_the_page_forbids_what_is_not_its_own(path: str, media_type: str, live: Live) -> None:
    answer = httpx.get(live.url + path, timeout=PATIENCE)
    assert answer.headers['content-type'].startswith(media_type)
    policy = answer.headers['content-security-policy']
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert 'unsafe' not in policy and 'http' not in policy
    if path != '/icon.svg':
        assert 'http' not in answer.text
    assert not re.search(r'<style|style=|<script>|\son\w+=', answer.text)
    assert httpx.head(
        live.url + path, timeout=PATIENCE).headers['content-type'] == (
            answer.headers['content-type'])
    assert httpx.get(f'{live.url}{path}?response=1', timeout=PATIENCE).content == answer.content


def test_images_are_decoded_for_the_page(live: Live) -> None:
    """For formats that browsers do not know, with the rotation that the answer has."""
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    content = file_of(PICTURE, 'TIFF', exif=exif)
    decoded = httpx.post(f'{live.url}/api/image', content=content, timeout=PATIENCE)
    pixels = np.asarray(Image.open(BytesIO(decoded.content)))
    np.testing.assert_array_equal(pixels, np.rot90(np.asarray(PICTURE), -1))
    answer = post(live, content).json()
    assert (answer['height'], answer['width']) == pixels.shape[:2]
    broken = httpx.post(f'{live.url}/api/image', content=b'x', timeout=PATIENCE)
    assert broken.status_code == 415 and 'no image that can be read' in broken.json()['detail']


def test_figures_of_what_the_model_looks_at(live: Live) -> None:
    names = httpx.get(f'{live.url}/api/model', timeout=PATIENCE).json()['figures']
    assert 'features' in names
    url = f'{live.url}/api/figures'
    drawn = httpx.post(f'{url}/features', content=file_of(PICTURE), timeout=PATIENCE)
    assert Image.open(BytesIO(drawn.content)).format == 'PNG'
    unknown = httpx.post(f'{url}/x', content=file_of(PICTURE), timeout=PATIENCE)
    assert (unknown.status_code,
            unknown.json()['detail']) == (404, f"this model has no figure 'x': it has "
                                          f'{", ".join(names)}')
    refused = httpx.post(f'{url}/features?size=9', content=file_of(PICTURE), timeout=PATIENCE)
    assert (refused.status_code,
            refused.json()['detail']) == (422, '/api/figures/features has no parameters, got size')


@pytest.mark.parametrize('headers, status', [({'Host': 'elsewhere.example'}, 421),
                                             ({'Host': '127.0.0.1.example'}, 421),
                                             ({'Host': 'localhost:7860'}, 200),
                                             ({'Host': '[::1]:7860'}, 200),
                                             ({'Origin': 'http://elsewhere.example'}, 403),
                                             ({'Origin': 'http://['}, 403),
                                             ({'Origin': 'null'}, 403)])  # yapf: disable
def test_other_sites_are_refused(headers: dict[str, str], status: int, live: Live) -> None:
    answer = httpx.get(f'{live.url}/api/model', headers=headers, timeout=PATIENCE)
    assert answer.status_code == status, answer.text
    assert "default-src 'none'" in answer.headers['content-security-policy']


def test_large_requests_are_refused_whatever_they_announce(live: Live) -> None:

    def endless() -> Iterator[bytes]:
        for _ in range(30):
            yield b'\0' * 10**5

    answer = httpx.post(f'{live.url}/api/predict', content=endless(), timeout=PATIENCE)
    assert (answer.status_code,
            answer.json()['detail']) == (413, 'the file has more than the 1 MB that are accepted')
    other = httpx.post(f'{live.url}/health', content=b'[' * 300_000, timeout=PATIENCE)
    assert other.status_code == 413 and 'sends no file' in other.json()['detail']


def test_a_server_for_all_is_not_bound_to_a_name(live: Live) -> None:
    own = dict(host='any.example:80', origin='https://any.example:80')
    guarded: Any = partial(RequestGuard, None, service=live.service, loopback=False)
    guarded().check('/', Headers(own))
    with pytest.raises(HTTPException, match='421|not .any.example'):
        guarded(allowed_hosts=('models.example', )).check('/', Headers(own))
    guarded(allowed_hosts=('models.example', )).check('/health', Headers(dict(host='10.0.0.7')))


@pytest.mark.parametrize('headers, status', [
    ({'Host': 'models.example', 'Origin': 'https://models.example'}, 200),
    ({'Host': 'Models.example:443'}, 200),
    ({'Origin': 'https://models.example'}, 200),
    ({'Host': 'other.example:8443', 'Origin': 'https://other.example:8443'}, 200),
    ({'Host': 'other.example:9'}, 421),
    ({'Host': 'models.example.org'}, 421),
    ({'Host': 'models.example', 'Origin': 'https://elsewhere.example'}, 403),
])  # yapf: disable
def test_a_proxy_passes_names_on(headers: dict[str, str], status: int, live: Live) -> None:
    """Those of --allowed-host, as nginx does with and without ``proxy_set_header Host``."""
    answer = httpx.post(f'{live.url}/api/predict', content=file_of(PICTURE), headers=headers,
                        timeout=PATIENCE)  # yapf: disable
    assert answer.status_code == status, answer.text
    if status != 200:
        assert '--allowed-host' in answer.json()['detail']


HEAD = (b'POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n'
        b'Content-Length: 1000\r\n\r\n')


@contextmanager
def sending(live: Live, *parts: bytes) -> Iterator[socket.socket]:
    """A connection that sends something, and no more."""
    with socket.create_connection(('127.0.0.1', httpx.URL(live.url).port), PATIENCE) as connection:
        for part in parts:
            connection.sendall(part)
        yield connection


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the server will do."""
    last = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < last, 'it does not come true'
        sleep(0.01)


def test_uploads_that_stop_are_given_up(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold a place each, so others are refused before their file is read, and a deadline."""
    uploads = live.service.uploads
    monkeypatch.setattr(uploads, 'capacity', 2)
    with sending(live, HEAD, b'x' * 990), sending(live, HEAD, b'x' * 990):
        until(lambda: uploads.num_taken == 2)
        refused = post(live, b'x' * 10**5)
        assert (refused.status_code, refused.headers['retry-after']) == (503, '2')
        assert httpx.get(f'{live.url}/health', timeout=PATIENCE).is_success
        monkeypatch.setattr(middleware, 'STALL_SECONDS', 0.)
        with sending(live, HEAD, b'x' * 990) as third:  # is refused while it sends
            assert third.recv(99).startswith(b'HTTP/1.1 503')
    until(lambda: uploads.num_taken == 0)


@pytest.mark.parametrize('path, media_type', [('/api/predict', 'image/png'),
                                              ('/api/figures/features', 'image/png'),
                                              ('/api/image', 'multipart/form-data; boundary=x')])
def test_a_body_has_a_deadline(path: str, media_type: str, live: Live,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, 'STALL_SECONDS', 0.1)
    head = HEAD.replace(b'/api/predict', path.encode()).replace(b'image/png', media_type.encode())
    with sending(live, head, b'--x\r\n') as connection:
        answer = b''.join(iter(partial(connection.recv, 9999), b''))
    assert answer.startswith(b'HTTP/1.1 408') and b'does not arrive' in answer
    until(lambda: live.service.uploads.num_taken == 0)


@pytest.mark.parametrize('body', [b'', b'x' * 990])
def test_a_client_that_leaves_is_no_fault(body: bytes, live: Live,
                                          caplog: pytest.LogCaptureFixture) -> None:
    with sending(live, HEAD, body):
        until(lambda: live.service.uploads.num_taken == 1)
    until(lambda: live.service.uploads.num_taken == 0)
    assert httpx.get(f'{live.url}/health', timeout=PATIENCE).is_success
    assert not caplog.records


def test_connections_have_a_limit_and_no_rest(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    open_now = live.server.server_state.connections
    until(lambda: not open_now)
    monkeypatch.setattr(connection_limits, 'CHECK_SECONDS', 0.2)
    with sending(live, HEAD[:20]) as silent:
        until(lambda: len(open_now) == 1)
        monkeypatch.setattr(connection_limits, 'MAX_CONNECTIONS', 1)
        with sending(live) as refused:
            assert refused.recv(99).startswith(b'HTTP/1.1 503')
        with suppress(ConnectionResetError):
            assert silent.recv(1) == b''  # closed: half of a head is no request
    until(lambda: not open_now)


def test_an_answer_that_is_not_read_is_given_up(live: Live,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, 'CHECK_SECONDS', 0.2)
    open_now = live.server.server_state.connections
    until(lambda: not open_now)
    asked = b'GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n' * 3000
    with sending(live) as connection:
        connection.setblocking(False)
        until(lambda: len(open_now) == 1)
        with suppress(BlockingIOError, ConnectionError):
            while asked:
                asked = asked[connection.send(asked):]
        until(lambda: not open_now)


def test_an_answer_that_is_read_slowly_is_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check finds the buffer full again, whose bytes are others."""

    class Transport:
        """As asyncio's, for what a connection asks it."""
        unsent, aborted = 0, False

        def write(self, data: bytes) -> None:
            self.unsent += len(data)

        def get_write_buffer_size(self) -> int:
            return self.unsent

        def abort(self) -> None:
            self.aborted = True

    transport: Any = Transport()
    protocol: Any = connection_limits.LimitedProtocol.__new__(connection_limits.LimitedProtocol)
    protocol.counting = protocol.transport = connection_limits.CountingTransport(transport)
    protocol.cycle, protocol.num_answers = SimpleNamespace(response_complete=False), 0
    protocol.seen, protocol.loop = (-1, -1), SimpleNamespace(call_later=lambda *_: None)
    for _ in range(4):
        protocol.counting.write(bytes(100))
        transport.unsent = 100  # so much is read in the meantime
        protocol.check()
        assert not transport.aborted
    protocol.check()
    assert transport.aborted


@pytest.mark.parametrize('grace, status', [(PATIENCE, 200), (0, 503)])
def test_what_is_in_work_at_the_end(grace: float, status: int,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM and Ctrl-C: it is answered, or 503 says that the server ends; never 500."""
    monkeypatch.setattr(server, 'SECONDS_TO_FINISH', grace)
    model, started, gate = random_model('sem_fpn'), Event(), Event()
    run = model.run

    def held(batch: Any) -> Any:
        started.set()
        gate.wait(PATIENCE)
        return run(batch)

    monkeypatch.setattr(model, 'run', held)
    with live_server(model) as live, ThreadPoolExecutor(2) as users:
        first = users.submit(post, live, file_of(PICTURE))
        assert started.wait(PATIENCE)
        with sending(live, HEAD, b'x' * 990) as half:
            until(lambda: live.service.uploads.num_taken == 2)
            live.server.should_exit = True
            assert half.recv(99).startswith(b'HTTP/1.1 503')  # its file is not there yet
        if grace:
            assert not first.done()
            gate.set()
        answer = first.result(PATIENCE)
        gate.set()
    assert answer.status_code == status, answer.text
    assert status == 200 or 'the server ends' in answer.json()['detail']
