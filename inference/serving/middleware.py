"""What stands before all routes: who may ask, for what, and how much may be sent."""
from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from .service import ENDING, Busy, Service
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
HEALTH = '/health'  # which probes ask for by the address of the machine
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
STALL_SECONDS = 20.  # for which a request may pause
TICK_SECONDS = 0.5  # after which a request that waits for its body looks whether the server ends
RETRY = {'Retry-After': '2'}  # seconds
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
    - Requests that are too large or too slow, or send a file while others fill all places.

    Args:
        app: What is guarded.
        service: Whose limits, places and time hold.
        loopback: Whether only this machine may ask.
        folder: Where the page keeps its files.
        allowed_hosts: Names that a proxy passes on as ``Host`` or ``Origin``, with a port or
            without, in lower case.
    """

    def __init__(self,
                 app: App,
                 *,
                 service: Service,
                 loopback: bool,
                 folder: str,
                 allowed_hosts: tuple[str, ...] = ()) -> None:
        self.app, self.loopback, self.folder = app, loopback, folder
        self.service, self.allowed_hosts = service, allowed_hosts
        self.max_bytes = service.limits.max_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope['type'] != 'http':
            if scope['type'] == 'lifespan':
                await self.app(scope, receive, send)
            return
        path = scope['path']
        send = with_headers(send)
        receive = in_time(receive, self.service)
        guarded = limited(receive, self.most(path), self.too_large(path))
        with ExitStack() as stack:
            try:
                self.check(path, Headers(scope=scope))
                if path in FILES and scope['method'] == 'POST':
                    stack.enter_context(self.service.uploads.one())
                if path == EVENTS and scope['method'] == 'POST':
                    body = await whole(guarded)
                    self.check_event(body)
                    guarded = replayed(body, receive)
            except (HTTPException, Busy) as error:
                refusal = refusal_of(error)
                if refusal.status_code in (413, 503):
                    await drain(receive, MOST_DRAINED)
                await refusal(scope, receive, send)
                return
            with suppress(ClientDisconnect):  # nobody waits for the answer
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
        is_known = name_of(host) in LOOPBACK or self.is_allowed(host) or path == HEALTH
        if not is_known and (self.loopback or self.allowed_hosts):
            names = ', '.join(('localhost', *self.allowed_hosts))
            raise HTTPException(
                421, f'this server is {names}, not {host!r}: start it with --allowed-host if a '
                'proxy passes this name on')
        if origin is not None and place_of(origin) != host and not self.is_allowed(
                place_of(origin)):
            raise HTTPException(
                403, f'requests from {origin!r} are refused: start the server with --allowed-host '
                'if this is the name of a proxy before it')
        if self.service.ending:
            raise HTTPException(503, ENDING, RETRY)
        if not OPEN.fullmatch(path) and not self.holds(path):
            raise HTTPException(404, 'not found')
        if path == UPLOAD and stored_bytes(self.folder) > MOST_STORED:
            raise HTTPException(503, 'too many images at once: try again in a few minutes')
        length = headers.get('content-length') or '0'
        if not length.isdecimal():
            raise HTTPException(400, f'content-length must be a number, got {length!r}')
        if int(length[:20]) > self.most(path):
            raise self.too_large(path)

    def is_allowed(self, place: str | None) -> bool:
        """Return True if a host, with its port or without, is one that a proxy passes on."""
        place = (place or '').lower()
        return place in self.allowed_hosts or name_of(place) in self.allowed_hosts

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
    with suppress(HTTPException):  # of what does not arrive
        while more and most > 0:
            message = await receive()
            most -= len(message.get('body', b''))
            more = message.get('more_body', False)


def in_time(receive: Receive, service: Service) -> Receive:
    """Raise an HTTPException for a body that does not arrive.

    Args:
        receive: Gives the messages of a request.
        service: A body must arrive within its time, and before it ends.
    """
    started, complete = monotonic(), False

    async def wrapped() -> Message:
        nonlocal complete
        if complete:  # what follows says that the client is gone
            return await receive()
        last = min(started + service.timeout, monotonic() + STALL_SECONDS)
        while True:
            try:
                message = await asyncio.wait_for(receive(), TICK_SECONDS)
            except asyncio.TimeoutError:  # noqa: UP041  # Python 3.10 has another TimeoutError
                if service.ending:
                    raise HTTPException(503, ENDING, RETRY) from None
                if monotonic() > last:
                    raise HTTPException(408, 'the rest of the request does not arrive') from None
            else:
                complete = not message.get('more_body', False)
                return message

    return wrapped


def refusal_of(error: HTTPException | Busy) -> JSONResponse:
    """Return the response to a request that is refused."""
    if isinstance(error, Busy):
        return JSONResponse(dict(detail=str(error)), 503, RETRY)
    return JSONResponse(dict(detail=error.detail), error.status_code, error.headers)


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
