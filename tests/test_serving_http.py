"""The server over HTTP: its API, and the requests that it rejects."""
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
from helpers.live_server import (LIMITS, PATIENCE, LiveServer, build_random_model, draw_rectangles,
                                 encode_image, live_server)
from PIL import Image
from pycocotools import mask as coco_masks
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from colonnade.inference.serving import middleware, server
from colonnade.inference.serving.json_api import build_api
from colonnade.inference.serving.middleware import RequestGuard
from colonnade.inference.serving.service import Service
from colonnade.inference.serving.uploads import Limits, UploadError, read_upload
from colonnade.visualization import figures

IMAGE = draw_rectangles(0)
CONTENT = encode_image(IMAGE)


def build_png_header(width: int, height: int) -> bytes:
    """Return a PNG that declares a size, without the pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack('>I', zlib.crc32(kind + data))
        return struct.pack('>I', len(data)) + kind + data + checksum

    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) +
            chunk(b'IDAT', zlib.compress(b'\0' * 99)) + chunk(b'IEND', b''))


BROKEN = {  # content, status, message
    'nothing': (b'', 400, 'the file is empty'),
    'text': (b'not an image\n' * 9, 415, 'not a readable image'),
    'EPS': (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n', 415, 'not a readable image'),
    'SVG': (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 415, 'not a readable image'),
    'a part': (encode_image(draw_rectangles(1), 'JPEG')[:-200], 400, 'truncated'),
    'a head': (CONTENT[:50], 400, 'truncated'),
    'many pixels': (build_png_header(1001, 1000), 413,
                    '1001 x 1000 pixels, more than the limit of 1000000'),
    'a bomb': (build_png_header(60_000, 60_000), 413, 'more than 1000000 pixels'),
    'many bytes': (b'\0' * (10**6 + 1), 413, 'larger than the limit of 1 MB'),
    'a line': (encode_image(Image.new('RGB', (9000, 1))), 400,
               'fails on the image of 1 x 9000 pixels'),
    'floats': (encode_image(Image.new('F', (9, 9)), 'TIFF'), 400,
               'the image cannot be used: its values are floating-point numbers'),
}
FRAMES = [Image.new('RGB', (40, 30), colour) for colour in ('red', 'blue')]
UNUSUAL = {
    '1 x 1': encode_image(Image.new('RGB', (1, 1))),
    'wide': encode_image(Image.new('RGB', (3000, 180))),
    'CMYK': encode_image(IMAGE.convert('CMYK'), 'JPEG'),
    'animated': encode_image(FRAMES[0], 'GIF', save_all=True, append_images=FRAMES[1:]),
    'transparent': encode_image(IMAGE.convert('RGBA'), 'WEBP'),
    '16 bits': encode_image(Image.fromarray(np.full((20, 30), 9999, np.uint16)), 'TIFF'),
}


@pytest.fixture(scope='module')
def live() -> Iterator[LiveServer]:
    with live_server(build_random_model('mask_rcnn'), batch_size=3) as server:
        yield server


def post(live: LiveServer,
         content: bytes | Iterator[bytes] = CONTENT,
         path: str = '/api/predict',
         headers: dict[str, str] | None = None,
         **query: Any) -> httpx.Response:
    return httpx.post(
        live.url + path, content=content, params=query, headers=headers, timeout=PATIENCE)


def get(live: LiveServer, path: str, **options: Any) -> httpx.Response:
    return httpx.get(live.url + path, timeout=PATIENCE, **options)


def check_error(response: httpx.Response, status: int, message: str) -> None:
    assert response.status_code == status, response.text
    assert message in response.json()['detail']


def check_prediction(content: dict[str, Any], expected: Any, tolerance: float) -> None:
    assert (content['height'], content['width']) == expected.size
    instances = content['instances']
    assert [instance['class'] for instance in instances] == list(expected.names)
    boxes = np.array([instance['box'] for instance in instances]).reshape(-1, 4)
    np.testing.assert_allclose(boxes, expected.boxes.reshape(-1, 4), atol=tolerance)


def test_pixels_are_limited_before_decoding() -> None:
    with pytest.raises(UploadError, match='pixels') as raised:
        read_upload(build_png_header(30_000, 1000), Limits())
    assert raised.value.status == 413


@pytest.mark.parametrize('name', BROKEN)
def test_broken_files(name: str, live: LiveServer) -> None:
    content, status, message = BROKEN[name]
    check_error(post(live, content), status, message)


@pytest.mark.parametrize('name', UNUSUAL)
def test_unusual_images(name: str, live: LiveServer) -> None:
    response = post(live, UNUSUAL[name])
    assert response.status_code == 200, response.text


def test_description_of_the_model(live: LiveServer) -> None:
    assert get(live, '/healthz').json() == dict(status='ok')
    content = get(live, '/api/model').json()
    names = content['model'], content['backbone'], content['arch']
    assert names == ('MaskRCNN', 'XCiT', 'nano_12_p16')
    assert content['weights'] == 'weights.pth' and content['max_pixels'] == LIMITS.max_pixels
    assert set(get(live, '/api/openapi.json').json()['paths']) == {
        '/healthz', '/readyz', '/metrics', '/api/model', '/api/predict', '/api/image',
        '/api/figures/{name}'
    }


def test_predictions_equal_those_of_the_model(live: LiveServer) -> None:
    expected = live.model.predict(IMAGE).filter_by_score(0.6)
    assert len(expected)
    content = post(live, threshold=0.6, masks='rle').json()
    check_prediction(content, expected, tolerance=0.01)
    masks = [coco_masks.decode(instance['mask']) for instance in content['instances']]
    np.testing.assert_array_equal(masks, expected.decode_masks())
    assert 'mask' not in post(live, threshold=0.6).json()['instances'][0]
    assert content['seconds'].keys() == {'decoding', 'waiting', 'model'}


def test_forms_and_drawings(live: LiveServer) -> None:
    form: dict[str, Any] = dict(image=('any.png', CONTENT))
    url = f'{live.url}/api/predict'
    drawing = httpx.post(f'{url}?format=png&threshold=0.6', files=form, timeout=PATIENCE)
    assert drawing.headers['content-type'] == 'image/png'
    expected = live.model.predict(IMAGE).draw(IMAGE, threshold=0.6)
    np.testing.assert_array_equal(Image.open(BytesIO(drawing.content)), expected)
    for fields, status, message in ((dict(x=(None, 'text')), 400, '-F image=@FILE'),
                                    (form | dict(opacity=(None, '0.2')), 422, 'in the URL')):
        check_error(httpx.post(url, files=fields, timeout=PATIENCE), status, message)


@pytest.mark.parametrize('query, message', [
    (dict(threshold=50), 'threshold must be between 0 and 1, got 50'),
    (dict(opacity='half'), 'opacity must be between 0 and 1, got half'),
    (dict(masks='png', format=''),
     'masks must be none or rle, got png; format must be json or png, got '),
    (dict(treshold=0.5),
     'unknown parameter treshold: expected threshold, opacity, masks, format'),
])  # yapf: disable
def test_invalid_parameters(query: dict[str, Any], message: str, live: LiveServer) -> None:
    response = post(live, **query)
    assert (response.status_code, response.json()) == (422, dict(detail=message))


def test_segmenters_have_no_threshold() -> None:
    with closing(Service(build_random_model('sem_fpn'), LIMITS)) as service:
        client = TestClient(build_api(service, figures))
        response = client.post('/api/predict?threshold=0.5', content=CONTENT)
        check_error(response, 422, 'unknown parameter threshold: expected opacity, masks, format')
        assert client.post('/api/predict?opacity=0.2', content=CONTENT).is_success


@pytest.mark.parametrize('method, path, allowed', [('GET', '/api/predict', 'POST'),
                                                   ('POST', '/api/model', 'GET'),
                                                   ('DELETE', '/healthz', 'GET')])
def test_unsupported_methods(method: str, path: str, allowed: str, live: LiveServer) -> None:
    response = httpx.request(method, live.url + path, timeout=PATIENCE)
    assert response.headers['allow'] == allowed
    check_error(response, 405, f'{path} expects {allowed}, got {method}')


def test_concurrent_users(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user gets the prediction for the own image, of any shape."""
    images = [draw_rectangles(seed, (96, 64) if seed % 3 else (64, 96)) for seed in range(6)]
    expected = [live.model.predict(image).filter_by_score(0.6) for image in images]
    start, arrivals, all_arrived = len(live.model.batches), count(1), Event()
    prepare, run = live.model.prepare, live.model.run

    def prepare_and_count(image: np.ndarray) -> Any:
        prepared = prepare(image)
        if next(arrivals) == len(images):
            all_arrived.set()
        return prepared

    monkeypatch.setattr(live.model, 'prepare', prepare_and_count)
    monkeypatch.setattr(live.model, 'run', lambda batch: all_arrived.wait(PATIENCE) and run(batch))
    with ThreadPoolExecutor(6) as users:
        responses = list(
            users.map(lambda image: post(live, encode_image(image), threshold=0.6), images))
    assert max(live.model.batches[start:]) > 1
    for response, result in zip(responses, expected, strict=True):
        check_prediction(response.json(), result, tolerance=0.1)


@pytest.mark.parametrize('path', ['/docs', '/page', '/page.html', '/../page.py', '/api', '/config'])
def test_unknown_routes(path: str, live: LiveServer) -> None:
    check_error(get(live, path), 404, 'Not Found')


@pytest.mark.parametrize('path, media_type', [('/', 'text/html'), ('/page.css', 'text/css'),
                                              ('/page.js', 'text/javascript'),
                                              ('/icon.svg', 'image/svg+xml')])
def test_page_loads_only_own_files(path: str, media_type: str, live: LiveServer) -> None:
    response = get(live, path)
    assert response.headers['content-type'].startswith(media_type)
    policy = response.headers['content-security-policy']
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert 'unsafe' not in policy and 'http' not in policy
    assert path == '/icon.svg' or 'http' not in response.text
    assert not re.search(r'<style|style=|<script>|\son\w+=', response.text)
    head = httpx.head(live.url + path, timeout=PATIENCE)
    assert head.headers['content-type'] == response.headers['content-type']
    assert get(live, f'{path}?response=1').content == response.content


def test_decoded_image(live: LiveServer) -> None:
    """The page shows formats that browsers do not support, rotated as in the prediction."""
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    content = encode_image(IMAGE, 'TIFF', exif=exif)
    pixels = np.asarray(Image.open(BytesIO(post(live, content, '/api/image').content)))
    np.testing.assert_array_equal(pixels, np.rot90(np.asarray(IMAGE), -1))
    prediction = post(live, content).json()
    assert (prediction['height'], prediction['width']) == pixels.shape[:2]
    check_error(post(live, b'x', '/api/image'), 415, 'not a readable image')


def test_figures(live: LiveServer) -> None:
    names = get(live, '/api/model').json()['figures']
    assert 'features' in names
    figure = post(live, path='/api/figures/features')
    assert Image.open(BytesIO(figure.content)).format == 'PNG'
    check_error(post(live, path='/api/figures/x'), 404, f'expected one of {", ".join(names)}')
    check_error(post(live, path='/api/figures/features', size=9), 422, 'unknown parameter size')


@pytest.mark.parametrize('headers, status', [({'Host': 'elsewhere.example'}, 421),
                                             ({'Host': '127.0.0.1.example'}, 421),
                                             ({'Host': 'localhost:7860'}, 200),
                                             ({'Host': '[::1]:7860'}, 200),
                                             ({'Origin': 'http://elsewhere.example'}, 403),
                                             ({'Origin': 'http://['}, 403),
                                             ({'Origin': 'null'}, 403)])  # yapf: disable
def test_requests_from_other_sites(headers: dict[str, str], status: int, live: LiveServer) -> None:
    response = get(live, '/api/model', headers=headers)
    assert response.status_code == status, response.text
    assert "default-src 'none'" in response.headers['content-security-policy']


@pytest.mark.parametrize('headers, status', [
    ({'Host': 'models.example', 'Origin': 'https://models.example'}, 200),
    ({'Host': 'Models.example:443'}, 200),
    ({'Origin': 'https://models.example'}, 200),
    ({'Host': 'other.example:8443', 'Origin': 'https://other.example:8443'}, 200),
    ({'Host': 'other.example:9'}, 421),
    ({'Host': 'models.example.org'}, 421),
    ({'Host': 'models.example', 'Origin': 'https://elsewhere.example'}, 403),
])  # yapf: disable
def test_allowed_hosts(headers: dict[str, str], status: int, live: LiveServer) -> None:
    """A proxy such as nginx sends names with and without ``proxy_set_header Host``."""
    response = post(live, headers=headers)
    assert response.status_code == status, response.text
    assert status == 200 or '--allowed-host' in response.json()['detail']


def test_public_server_accepts_any_host(live: LiveServer) -> None:
    headers = dict(host='any.example:80', origin='https://any.example:80')
    guard: Any = partial(RequestGuard, None, service=live.service, loopback=False)
    guard().check('/', Headers(headers))
    with pytest.raises(HTTPException, match='421|not .any.example'):
        guard(allowed_hosts=('models.example', )).check('/', Headers(headers))
    guard(allowed_hosts=('models.example', )).check('/healthz', Headers(dict(host='10.0.0.7')))


def test_large_requests_of_unknown_length(live: LiveServer) -> None:
    chunks = (b'\0' * 10**5 for _ in range(30))
    check_error(post(live, chunks), 413, 'the file is larger than the limit of 1 MB')
    check_error(post(live, b'[' * 300_000, '/healthz'), 413, 'sends no file')


HEAD = (b'POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n'
        b'Content-Length: 1000\r\n\r\n')


@contextmanager
def connect(live: LiveServer, *parts: bytes) -> Iterator[socket.socket]:
    """Context manager of a connection that sends only ``parts``."""
    with socket.create_connection(('127.0.0.1', httpx.URL(live.url).port), PATIENCE) as connection:
        for part in parts:
            connection.sendall(part)
        yield connection


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < deadline, 'timeout'
        sleep(0.01)


def test_stalled_uploads(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take slots, so that other requests are rejected before their file is read."""
    uploads = live.service.uploads
    monkeypatch.setattr(uploads, 'capacity', 2)
    with connect(live, HEAD, b'x' * 990), connect(live, HEAD, b'x' * 990):
        wait_until(lambda: uploads.num_taken == 2)
        rejected = post(live, b'x' * 10**5)
        assert (rejected.status_code, rejected.headers['retry-after']) == (503, '2')
        assert get(live, '/healthz').is_success
        monkeypatch.setattr(middleware, 'STALL_SECONDS', 0.)
        with connect(live, HEAD, b'x' * 990) as third:
            assert third.recv(99).startswith(b'HTTP/1.1 503')
    wait_until(lambda: uploads.num_taken == 0)


@pytest.mark.parametrize('path, media_type', [('/api/predict', 'image/png'),
                                              ('/api/figures/features', 'image/png'),
                                              ('/api/image', 'multipart/form-data; boundary=x')])
def test_time_limit_of_bodies(path: str, media_type: str, live: LiveServer,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, 'STALL_SECONDS', 0.1)
    head = HEAD.replace(b'/api/predict', path.encode()).replace(b'image/png', media_type.encode())
    with connect(live, head, b'--x\r\n') as connection:
        response = b''.join(iter(partial(connection.recv, 9999), b''))
    assert response.startswith(b'HTTP/1.1 408') and b'did not arrive' in response
    assert b'connection: close' in response.lower()
    wait_until(lambda: live.service.uploads.num_taken == 0)


@pytest.mark.parametrize('body', [b'', b'x' * 990])
def test_disconnecting_client_is_not_an_error(body: bytes, live: LiveServer,
                                              caplog: pytest.LogCaptureFixture) -> None:
    with connect(live, HEAD, body):
        wait_until(lambda: live.service.uploads.num_taken == 1)
    wait_until(lambda: live.service.uploads.num_taken == 0)
    assert get(live, '/healthz').is_success
    assert not caplog.records


def test_idle_and_too_many_connections(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = live.server.server_state.connections
    wait_until(lambda: not connections)
    monkeypatch.setattr(server, 'CHECK_SECONDS', 0.2)
    with connect(live, HEAD[:20]) as idle:
        wait_until(lambda: len(connections) == 1)
        monkeypatch.setattr(server, 'MAX_CONNECTIONS', 1)
        with connect(live) as rejected:
            assert rejected.recv(99).startswith(b'HTTP/1.1 503')
        with suppress(ConnectionResetError):
            assert idle.recv(1) == b'', 'an incomplete header is not a request'
    wait_until(lambda: not connections)


def test_client_that_does_not_read(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, 'CHECK_SECONDS', 0.2)
    connections = live.server.server_state.connections
    wait_until(lambda: not connections)
    requests = b'GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n' * 3000
    with connect(live) as connection:
        connection.setblocking(False)
        wait_until(lambda: len(connections) == 1)
        with suppress(BlockingIOError, ConnectionError):
            while requests:
                requests = requests[connection.send(requests):]
        wait_until(lambda: not connections)


def test_client_that_reads_slowly() -> None:
    """The buffer is full at each check, but its content differs."""

    class Transport:
        """asyncio's transport, as far as a connection uses it."""
        unsent, aborted = 0, False

        def write(self, data: bytes) -> None:
            self.unsent += len(data)

        def get_write_buffer_size(self) -> int:
            return self.unsent

        def abort(self) -> None:
            self.aborted = True

    transport: Any = Transport()
    protocol: Any = server.LimitedProtocol.__new__(server.LimitedProtocol)
    protocol.counting = protocol.transport = server.CountingTransport(transport)
    protocol.cycle, protocol.num_responses = SimpleNamespace(response_complete=False), 0
    protocol.last_state, protocol.loop = (-1, -1), SimpleNamespace(call_later=lambda *_: None)
    for _ in range(4):
        protocol.counting.write(bytes(100))
        transport.unsent = 100  # The client has read everything else.
        protocol.check()
        assert not transport.aborted
    protocol.check()
    assert transport.aborted


@pytest.mark.parametrize('seconds, status', [(PATIENCE, 200), (0, 503)])
def test_shutdown_during_requests(seconds: float, status: int,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are finished, or get status 503."""
    monkeypatch.setattr(server, 'SECONDS_TO_FINISH', seconds)
    model, started, gate = build_random_model('sem_fpn'), Event(), Event()
    run = model.run

    def wait_and_run(batch: Any) -> Any:
        started.set()
        gate.wait(PATIENCE)
        return run(batch)

    monkeypatch.setattr(model, 'run', wait_and_run)
    with live_server(model) as live, ThreadPoolExecutor(2) as users:
        first = users.submit(post, live)
        assert started.wait(PATIENCE)
        with connect(live, HEAD, b'x' * 990) as incomplete:
            wait_until(lambda: live.service.uploads.num_taken == 2)
            live.server.should_exit = True
            assert incomplete.recv(99).startswith(b'HTTP/1.1 503')
        if seconds:
            assert not first.done()
            gate.set()
        response = first.result(PATIENCE)
        gate.set()
    assert response.status_code == status, response.text
    assert status == 200 or 'the server is shutting down' in response.json()['detail']
