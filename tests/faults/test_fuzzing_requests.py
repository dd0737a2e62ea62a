"""Requests to the server, changed at random."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from helpers.fuzzing import TEXTS, changed_bytes, fuzz, limited
from helpers.live_server import LIMITS, file_of, random_model, shapes_image
from hypothesis import event, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from colonnade.inference.serving.server import build_app
from colonnade.inference.serving.service import Service
from colonnade.visualization import figures

PICTURE = shapes_image(0)
FILES = {kind: file_of(PICTURE, kind) for kind in ('PNG', 'JPEG', 'GIF', 'WEBP', 'TIFF')}
REFUSALS = {400, 403, 404, 405, 413, 415, 421, 422}
QUERIES = ('', 'threshold=0.5', 'masks=rle', 'format=png', 'opacity=1', 'threshold=', 'threshold=2',
           'threshold=nan', 'masks=x', 'x=1', 'format=json&format=png', '%00=%ff', '=')


@pytest.fixture(scope='module')
def client() -> Iterator[TestClient]:
    """The API behind its guard; what its code raises comes up here."""
    with closing(Service(random_model('sem_fpn'), LIMITS)) as service:
        app = build_app(service, figures, loopback=True)
        with TestClient(app, base_url='http://localhost') as found:
            yield found


def form_of(content: bytes) -> bytes:
    return (b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' +
            content + b'\r\n--b--\r\n')


@pytest.mark.slow
@fuzz(few=25, many=2000)
@given(draw=st.data())
def test_requests(client: TestClient, draw: st.DataObject) -> None:
    """A request is refused with a reason, or answered for its image; the server goes on."""
    source = FILES[draw.draw(st.sampled_from(sorted(FILES)))]
    headers = {}
    if draw.draw(st.booleans()):
        source, headers = form_of(source), {'content-type': 'multipart/form-data; boundary=b'}
    content = draw.draw(st.one_of(st.just(source), changed_bytes(source)))
    if draw.draw(st.integers(0, 3)) == 0:
        name = draw.draw(st.sampled_from(['content-type', 'host', 'origin', 'content-length']))
        words = [text for text in TEXTS if text.isascii() and text.isprintable()]
        headers[name] = draw.draw(st.sampled_from(['multipart/form-data', 'localhost', *words]))
    query = draw.draw(st.sampled_from(QUERIES))
    method = draw.draw(st.sampled_from(['POST'] * 6 + ['GET', 'PUT', 'DELETE']))
    path = draw.draw(st.sampled_from(['/api/predict'] * 6 + ['/health', '/api/x', '/../x', '//']))
    with limited():
        answer = client.request(method, f'{path}?{query}', content=content, headers=headers)
    event(str(answer.status_code))
    if answer.status_code in REFUSALS:
        assert answer.json()['detail'], answer.text
    elif answer.headers['content-type'] == 'application/json' and path == '/api/predict':
        assert answer.status_code == 200
        assert answer.json()['height'] > 0 and answer.json()['width'] > 0
    else:
        assert answer.status_code == 200, answer.text
    assert client.get('/health').json() == {'status': 'ok'}
