"""Untrusted servers of weights: all they can cause is a one-line error."""
from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from helpers.layouts_by_hand import TINY, original_state

from colonnade.backbones import XCiT
from colonnade.weights import WeightsError, downloads, load_weights


def encode_weights() -> bytes:
    buffer = io.BytesIO()
    torch.save(original_state(), buffer)
    return buffer.getvalue()


WEIGHTS = encode_weights()
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Server whose behavior depends on the path."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        kind = self.path.split('/')[1]
        self.send_response(302 if kind.startswith('to-') else 200)
        if kind == 'to-file':
            self.send_header('Location', 'file:///etc/hostname')
        elif kind == 'to-ftp':
            self.send_header('Location', 'ftp://127.0.0.1:9/a.pth')
        elif kind == 'cut':
            self.send_header('Content-Length', str(len(WEIGHTS)))
        self.end_headers()
        if kind == 'endless':
            try:
                while True:
                    self.wfile.write(b'\0' * 2**16)
            except OSError:  # The client has closed the connection.
                return
        elif kind == 'silent':
            self.server.ended.wait(60)
        elif not kind.startswith('to-'):
            self.wfile.write(WEIGHTS[:1000] if kind == 'cut' else WEIGHTS)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    with ThreadingHTTPServer(('127.0.0.1', 0), Server) as http_server:
        http_server.ended = Event()
        Thread(target=http_server.serve_forever, args=[0.01], daemon=True).start()
        yield f'http://127.0.0.1:{http_server.server_port}'
        http_server.ended.set()
        http_server.shutdown()


FAILURES = {
    'to-file/a.pth': 'is not allowed',
    'to-ftp/a.pth': 'cannot be downloaded',
    'cut/a.pth': r'the connection was lost after 1000 of \d+ bytes',
    'endless/a.pth': 'it has more than 1048576 bytes',
    'silent/a.pth': 'timed out',
    'whole/a-01234567.pth': f'its SHA-256 is {DIGEST}, but its name contains 01234567',
}


def test_concurrent_downloads(server: str, tmp_path: Path) -> None:
    path = tmp_path / 'a.pth'
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: downloads.fetch_file(f'{server}/whole/a.pth', path), range(2)))
    assert path.read_bytes() == WEIGHTS and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize('path', FAILURES)
def test_failed_downloads_leave_no_files(path: str, server: str, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete file in the cache would break later runs."""
    monkeypatch.setattr(downloads, 'MAX_BYTES', 2**20)
    monkeypatch.setattr(downloads, 'TIMEOUT', 0.5 if path.startswith('silent') else 20)
    with pytest.raises(WeightsError, match=FAILURES[path]) as raised:
        downloads.fetch(f'{server}/{path}')
    assert str(raised.value).startswith(f'{server}/{path} cannot be downloaded: ')
    assert not [each for each in tmp_path.rglob('*') if each.is_file()]


@pytest.mark.parametrize('name', [f'a-{DIGEST[:8]}.pth', 'a-20240131.pth', 'xcit-small.pth'])
def test_names_with_and_without_hash(name: str, server: str) -> None:
    load_weights(XCiT(TINY), f'{server}/whole/{name}')
