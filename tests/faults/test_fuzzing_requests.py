"""Randomly modified requests to the server."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from helpers.fuzzing import TEXTS, changed_bytes, fuzz, limited
from helpers.live_server import LIMITS, build_random_model, draw_rectangles, encode_image
from hypothesis import event, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from colonnade.inference.serving.server import build_app
from colonnade.inference.serving.service import Service
from colonnade.visualization import figures

IMAGE = draw_rectangles(0)
FILES = {kind: encode_image(IMAGE, kind) for kind in ('PNG', 'JPEG', 'GIF', 'WEBP', 'TIFF')}
ERRORS = {400, 403, 404, 405, 413, 415, 421, 422}
QUERIES = ('', 'threshold=0.5', 'masks=rle', 'format=png', 'opacity=1', 'threshold=', 'threshold=2',
           'threshold=nan', 'masks=x', 'x=1', 'format=json&format=png', '%00=%ff', '=')


@pytest.fixture(scope='module')
def client() -> Iterator[TestClient]:
    """Client of the application, which re-raises its exceptions."""
    with closing(Service(build_random_model('sem_fpn'), LIMITS)) as service:
        app = build_app(service, figures, loopback=True)
        with TestClient(app, base_url='http://localhost') as test_client:
            yield test_client


def build_form(content: bytes) -> bytes:
    return (b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' +
            content + b'\r\n--b--\r\n')


@pytest.mark.slow
@fuzz(few=25, many=2000)
@given(draw=st.data())
def test_requests(client: TestClient, draw: st.DataObject) -> None:
    """The server responds with an error message or a prediction, and keeps running."""
    source = FILES[draw.draw(st.sampled_from(sorted(FILES)))]
    headers = {}
    if draw.draw(st.booleans()):
        source, headers = build_form(source), {'content-type': 'multipart/form-data; boundary=b'}
    content = draw.draw(st.one_of(st.just(source), changed_bytes(source)))
    if draw.draw(st.integers(0, 3)) == 0:
        name = draw.draw(st.sampled_from(['content-type', 'host', 'origin', 'content-length']))
        words = [text for text in TEXTS if text.isascii() and text.isprintable()]
        headers[name] = draw.draw(st.sampled_from(['multipart/form-data', 'localhost', *words]))
    query = draw.draw(st.sampled_from(QUERIES))
    method = draw.draw(st.sampled_from(['POST'] * 6 + ['GET', 'PUT', 'DELETE']))
    path = draw.draw(st.sampled_from(['/api/predict'] * 6 + ['/healthz', '/api/x', '/../x', '//']))
    with limited():
        response = client.request(method, f'{path}?{query}', content=content, headers=headers)
    event(str(response.status_code))
    if response.status_code in ERRORS:
        assert response.json()['detail'], response.text
    elif response.headers['content-type'] == 'application/json' and path == '/api/predict':
        assert response.status_code == 200
        assert response.json()['height'] > 0 and response.json()['width'] > 0
    else:
        assert response.status_code == 200, response.text
    assert client.get('/healthz').json() == {'status': 'ok'}
