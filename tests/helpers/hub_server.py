"""A hub on this machine: as much of its protocol as pushing and pulling a model needs."""
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
    """Its repositories: a list of commits each, which are files by their paths.

    Attributes:
        repositories: By ``OWNER/NAME``.
        private: Those that need a token.
        large: Contents that were uploaded as large files, by their SHA-256.
        damage: What is put behind every large file that arrives.
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
def running_hub() -> Iterator[Hub]:
    """A hub that answers while the block runs."""
    with Hub() as hub:
        Thread(target=hub.serve_forever, args=[0.01], daemon=True).start()
        yield hub
        hub.shutdown()


class Handler(BaseHTTPRequestHandler):
    """Answers one request after the other."""
    server: Hub
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {'Content-Length': str(len(body)), **headers}.items():
            self.send_header(key.replace('_', '-'), value)
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.answer(dict(error=code), status, X_Error_Code=code, X_Error_Message=code)

    @property
    def token(self) -> str:
        return self.headers.get('Authorization', '').removeprefix('Bearer ')

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get('Content-Length', 0)))

    def do_PUT(self) -> None:
        content = self.body() + self.server.damage
        self.server.large[self.path.rpartition('/')[2]] = content
        self.answer(b'')

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        """``/OWNER/NAME/resolve/REVISION/FILE``."""
        if '/resolve/' not in self.path:
            return self.refuse(404, 'EntryNotFound')
        owner, name, _, revision, *rest = unquote(self.path).split('/')[1:]
        commits = self.server.repositories.get(f'{owner}/{name}')
        hidden = f'{owner}/{name}' in self.server.private and self.token not in (READ, WRITE)
        if commits is None or hidden:
            return self.refuse(401, 'RepoNotFound')
        numbers = {'main': len(commits) - 1, **{commit(i): i for i in range(len(commits))}}
        if revision not in numbers:
            return self.refuse(404, 'RevisionNotFound')
        content = commits[numbers[revision]].get('/'.join(rest))
        if content is None:
            return self.refuse(404, 'EntryNotFound')
        etag = hashlib.sha256(content).hexdigest()
        self.answer(content, ETag=etag, X_Repo_Commit=commit(numbers[revision]))

    def do_POST(self) -> None:
        body, path = self.body(), unquote(self.path)
        if path.endswith('/info/lfs/objects/batch'):
            return self.answer(dict(objects=[self.upload(each) for each in
                                             json.loads(body)['objects']]))  # yapf: disable
        if path == '/api/validate-yaml':
            return self.answer({})
        if self.token != WRITE and 'paths-info' not in path:
            return self.answer(dict(error='the token may not write'), 403)
        if path == '/api/repos/create':
            return self.create(json.loads(body))
        _, _, _, owner, name, action, revision = path.split('/')
        commits = self.server.repositories[f'{owner}/{name}']
        if action == 'preupload':
            files = [dict(path=each['path'], shouldIgnore=False,
                          uploadMode='lfs' if each['path'].endswith('.safetensors') else 'regular')
                     for each in json.loads(body)['files']]  # yapf: disable
            self.answer(dict(files=files))
        elif action == 'paths-info':
            files = commits[int(revision, 16)]
            self.answer([entry(each, files[each]) for each in parse_qs(body.decode())['paths']])
        elif action == 'commit':
            commits.append({**commits[-1], **dict(self.committed(body))})
            oid = commit(len(commits) - 1)
            url = f'{self.server.url}/{owner}/{name}/commit/{oid}'
            self.answer(dict(commitUrl=url, commitOid=oid))

    def create(self, wanted: dict[str, Any]) -> None:
        repository = f'{wanted["organization"]}/{wanted["name"]}'
        self.server.repositories.setdefault(repository, [{}])
        if wanted.get('visibility') == 'private' or wanted.get('private'):
            self.server.private.add(repository)
        self.answer(dict(url=f'{self.server.url}/{repository}'))

    def upload(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Where a large file is to be put."""
        href = f'{self.server.url}/large/{wanted["oid"]}'
        return dict(**wanted, actions=dict(upload=dict(href=href)))

    def committed(self, body: bytes) -> Iterator[tuple[str, bytes]]:
        """The files of a commit."""
        for line in body.splitlines():
            item = json.loads(line)
            if item['key'] == 'file':
                yield item['value']['path'], base64.b64decode(item['value']['content'])
            elif item['key'] == 'lfsFile':
                yield item['value']['path'], self.server.large[item['value']['oid']]


def commit(number: int) -> str:
    """The name of a commit."""
    return f'{number:040x}'


def entry(path: str, content: bytes) -> dict[str, Any]:
    """What a hub says of a file."""
    found: dict[str, Any] = dict(type='file', path=path, size=len(content), oid=commit(0))
    if path.endswith('.safetensors'):
        digest = hashlib.sha256(content).hexdigest()
        found['lfs'] = dict(oid=digest, size=len(content), pointerSize=100)
    return found
