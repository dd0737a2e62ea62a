"""What stands before all routes: who may ask, for what, and how much may be sent."""
from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from .uploads import too_many_bytes

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({'localhost', '127.0.0.1', '::1'})
UPLOAD = '/gradio_api/upload'
EVENTS = '/gradio_api/queue/join'
FILES = ('/api/predict', UPLOAD)
# what the page needs of Gradio, whose other routes fetch URLs, read files or tell of other users
OPEN = re.compile(r'/(health|api/(model|predict|openapi\.json))|'
                  r'/(config|theme\.css|favicon\.ico|manifest\.json)?|'
                  r'/(assets|static)/.+|'
                  r'/gradio_api/(info|startup-events|upload|upload_progress|reset|cancel|'
                  r'queue/(join|data)|heartbeat/\w+)')
STORED = '/gradio_api/file='
SMALL = 1 << 18  # bytes of a request that holds no file
MOST_DRAINED = 1 << 28  # bytes that are read to say why they are refused
MOST_STORED = 10**9  # bytes of the files of the page
AROUND = 1 << 14  # bytes around the file in a form
HEADERS = {
    'Content-Security-Policy':
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'",
    'Cross-Origin-Resource-Policy':
    'same-origin',
    'Referrer-Policy':
    'no-referrer',
    'X-Content-Type-Options':
    'nosniff',
}


class Guard:
    """Middleware that refuses what the page and the API do not need.

    - A ``Host`` that is not this machine, if only this machine may ask: a page of another site may
      have its name point here (DNS rebinding).
    - An ``Origin`` other than this server: pages of other sites must not send requests.
    - Routes of Gradio that the page does not use, files outside of its folder, and events that name
      such files or URLs.
    - Requests that are too large.

    Args:
        app: What is guarded.
        loopback: Whether only this machine may ask.
        max_bytes: Of an uploaded file.
        folder: Where the page keeps its files.
    """

    def __init__(self, app: App, *, loopback: bool, max_bytes: int, folder: str) -> None:
        self.app, self.loopback, self.folder = app, loopback, folder
        self.max_bytes = max_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope['type'] != 'http':
            if scope['type'] == 'lifespan':
                await self.app(scope, receive, send)
            return
        path = scope['path']
        send = with_headers(send)
        guarded = limited(receive, self.most(path), self.too_large(path))
        try:
            self.check(path, Headers(scope=scope))
            if path == EVENTS and scope['method'] == 'POST':
                body = await whole(guarded)
                self.check_event(body)
                guarded = replayed(body, receive)
        except HTTPException as error:
            if error.status_code == 413:
                await drain(receive, MOST_DRAINED)
            refusal = JSONResponse(dict(detail=error.detail), error.status_code)
            await refusal(scope, receive, send)
            return
        await self.app(scope, guarded, send)

    def most(self, path: str) -> int:
        """How many bytes may be sent to a route."""
        return self.max_bytes + AROUND if path in FILES else SMALL

    def too_large(self, path: str) -> HTTPException:
        """What is raised when more is sent; it names the limit that the server was started with."""
        if path in FILES:
            return HTTPException(413, too_many_bytes(self.max_bytes))
        return HTTPException(413, f'the request has more than {SMALL} bytes and sends no file')

    def check(self, path: str, headers: Headers) -> None:
        """Raise an HTTPException for a request that is refused for its head."""
        host, origin = headers.get('host', ''), headers.get('origin')
        if self.loopback and name_of(host) not in LOOPBACK:
            raise HTTPException(421, f'this server is localhost, not {host!r}')
        if origin is not None and place_of(origin) != host:
            raise HTTPException(403, f'requests from {origin!r} are refused')
        if not OPEN.fullmatch(path) and not self.holds(path):
            raise HTTPException(404, 'not found')
        if path == UPLOAD and stored_bytes(self.folder) > MOST_STORED:
            raise HTTPException(503, 'too many images at once: try again in a few minutes')
        length = headers.get('content-length') or '0'
        if not length.isdecimal():
            raise HTTPException(400, f'content-length must be a number, got {length!r}')
        if int(length[:20]) > self.most(path):
            raise self.too_large(path)

    def holds(self, path: str) -> bool:
        """Whether a route is that of a file in the folder."""
        return path.startswith(STORED) and self.is_within(path.removeprefix(STORED))

    def is_within(self, file: Any) -> bool:
        """Whether a path lies in the folder."""
        return (isinstance(file, str) and unquote(file).startswith(f'{self.folder}/')
                and '..' not in unquote(file))

    def check_event(self, body: bytes) -> None:
        """Raise an HTTPException for an event that names files that were not uploaded."""
        try:
            event = json.loads(body)
        except (ValueError, RecursionError):
            raise HTTPException(400, 'the event is no JSON') from None
        for node in dicts_in(event):
            if 'path' in node and not self.is_within(node['path']):
                raise HTTPException(400, 'only files that were uploaded can be used')


def name_of(host: str) -> str | None:
    """The name in a ``Host``, without its port."""
    try:
        return urlsplit(f'//{host}').hostname
    except ValueError:
        return None


def place_of(origin: str) -> str | None:
    """The host and port of an ``Origin``; None if it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def stored_bytes(folder: str) -> int:
    """How much lies in a folder, whose files and folders come and go."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def dicts_in(value: Any) -> Iterator[dict[str, Any]]:
    """All dictionaries in a value of JSON."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def with_headers(send: Send) -> Send:
    """Add ``HEADERS`` to a response."""

    async def wrapped(message: Message) -> None:
        if message['type'] == 'http.response.start':
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return wrapped


def limited(receive: Receive, most: int, too_large: HTTPException) -> Receive:
    """Raise ``too_large`` when more than ``most`` bytes arrive, whatever was announced."""
    count = 0

    async def wrapped() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get('body', b''))
        if count > most:
            raise too_large
        return message

    return wrapped


async def whole(receive: Receive) -> bytes:
    """The body of a request."""
    body, more = b'', True
    while more:
        message = await receive()
        body += message.get('body', b'')
        more = message.get('more_body', False)
    return body


async def drain(receive: Receive, most: int) -> None:
    """Read a body and forget it: many clients see no answer before they have sent all."""
    more = True
    while more and most > 0:
        message = await receive()
        most -= len(message.get('body', b''))
        more = message.get('more_body', False)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A request whose body was read already."""
    sent = False

    async def wrapped() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return dict(type='http.request', body=body, more_body=False)

    return wrapped
