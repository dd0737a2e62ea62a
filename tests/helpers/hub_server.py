"""A local hub with the part of the protocol that pushing and pulling a model needs."""
from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote

READ, WRITE = 'hf_reads', 'hf_writes'  # tokens


class Hub(ThreadingHTTPServer):
    """A hub with repositories, which are lists of commits.

    Attributes:
        repositories: Commits by ``OWNER/NAME``; each maps paths to contents.
        private: Repositories that need a token.
        large: Uploaded large files by their SHA-256.
        damage: Bytes to append to each large file.
    """

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.repositories: dict[str, list[dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.damage = b''

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_port}'


@contextmanager
def run_hub() -> Iterator[Hub]:
    """Context manager that runs a hub."""
    with Hub() as hub:
        Thread(target=hub.serve_forever, args=[0.01], daemon=True).start()
        yield hub
        hub.shutdown()


class Handler(BaseHTTPRequestHandler):
    """Handler of requests."""
    server: Hub
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def respond(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {'Content-Length': str(len(body)), **headers}.items():
            self.send_header(key.replace('_', '-'), value)
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def reject(self, status: int, code: str) -> None:
        self.respond(dict(error=code), status, X_Error_Code=code, X_Error_Message=code)

    @property
    def token(self) -> str:
        return self.headers.get('Authorization', '').removeprefix('Bearer ')

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get('Content-Length', 0)))

    def do_PUT(self) -> None:
        content = self.read_body() + self.server.damage
        self.server.large[self.path.rpartition('/')[2]] = content
        self.respond(b'')

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        """Handle ``/OWNER/NAME/resolve/REVISION/FILE``."""
        if '/resolve/' not in self.path:
            return self.reject(404, 'EntryNotFound')
        owner, name, _, revision, *rest = unquote(self.path).split('/')[1:]
        commits = self.server.repositories.get(f'{owner}/{name}')
        hidden = f'{owner}/{name}' in self.server.private and self.token not in (READ, WRITE)
        if commits is None or hidden:
            return self.reject(401, 'RepoNotFound')
        numbers = {'main': len(commits) - 1, **{get_oid(i): i for i in range(len(commits))}}
        if revision not in numbers:
            return self.reject(404, 'RevisionNotFound')
        content = commits[numbers[revision]].get('/'.join(rest))
        if content is None:
            return self.reject(404, 'EntryNotFound')
        etag = hashlib.sha256(content).hexdigest()
        self.respond(content, ETag=etag, X_Repo_Commit=get_oid(numbers[revision]))

    def do_POST(self) -> None:
        body, path = self.read_body(), unquote(self.path)
        if path.endswith('/info/lfs/objects/batch'):
            objects = [self.build_upload(each) for each in json.loads(body)['objects']]
            return self.respond(dict(objects=objects))
        if path == '/api/validate-yaml':
            return self.respond({})
        if self.token != WRITE and 'paths-info' not in path:
            return self.respond(dict(error='the token has no write access'), 403)
        if path == '/api/repos/create':
            return self.create(json.loads(body))
        _, _, _, owner, name, action, revision = path.split('/')
        commits = self.server.repositories[f'{owner}/{name}']
        if action == 'preupload':
            files = [dict(path=each['path'], shouldIgnore=False,
                          uploadMode='lfs' if each['path'].endswith('.safetensors') else 'regular')
                     for each in json.loads(body)['files']]  # yapf: disable
            self.respond(dict(files=files))
        elif action == 'paths-info':
            files = commits[int(revision, 16)]
            self.respond(
                [build_entry(each, files[each]) for each in parse_qs(body.decode())['paths']])
        elif action == 'commit':
            commits.append({**commits[-1], **dict(self.iter_files(body))})
            oid = get_oid(len(commits) - 1)
            url = f'{self.server.url}/{owner}/{name}/commit/{oid}'
            self.respond(dict(commitUrl=url, commitOid=oid))

    def create(self, settings: dict[str, Any]) -> None:
        repository = f'{settings["organization"]}/{settings["name"]}'
        self.server.repositories.setdefault(repository, [{}])
        if settings.get('visibility') == 'private' or settings.get('private'):
            self.server.private.add(repository)
        self.respond(dict(url=f'{self.server.url}/{repository}'))

    def build_upload(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return an entry with the URL to upload a large file to."""
        href = f'{self.server.url}/large/{entry["oid"]}'
        return dict(**entry, actions=dict(upload=dict(href=href)))

    def iter_files(self, body: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the files of a commit."""
        for line in body.splitlines():
            item = json.loads(line)
            if item['key'] == 'file':
                yield item['value']['path'], base64.b64decode(item['value']['content'])
            elif item['key'] == 'lfsFile':
                yield item['value']['path'], self.server.large[item['value']['oid']]


def get_oid(number: int) -> str:
    """Return the hash of a commit."""
    return f'{number:040x}'


def build_entry(path: str, content: bytes) -> dict[str, Any]:
    """Return the description of a file."""
    entry: dict[str, Any] = dict(type='file', path=path, size=len(content), oid=get_oid(0))
    if path.endswith('.safetensors'):
        digest = hashlib.sha256(content).hexdigest()
        entry['lfs'] = dict(oid=digest, size=len(content), pointerSize=100)
    return entry
