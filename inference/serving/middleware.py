"""Middleware of the server: who may send requests, and how much they may send."""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from .service import SHUTDOWN_MESSAGE, ServerBusyError, Service
from .uploads import too_many_bytes

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({'localhost', '127.0.0.1', '::1'})
HEALTH = '/health'  # probes ask for it by the address of the machine
IMAGE_ROUTES = ('/api/predict', '/api/image', '/api/figures/')
MAX_BODY_BYTES = 1 << 18  # of requests that send no image
MAX_DISCARDED_BYTES = 1 << 28  # of a refused body, which is read so that clients see the answer
FORM_BYTES = 1 << 14  # around the file in a form
STALL_SECONDS = 20.  # for which a request may pause
TICK_SECONDS = 0.5  # between two looks at whether the server ends
RETRY = {'Retry-After': '2'}  # seconds
HEADERS = {
    'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    'Cross-Origin-Resource-Policy': 'same-origin',
    'Referrer-Policy': 'no-referrer',
    'X-Content-Type-Options': 'nosniff',
}  # yapf: disable


class RequestGuard:
    """Middleware that refuses requests of other sites, and those that are too large or too slow.

    - A ``Host`` that is not this machine, if only this machine may ask: a page of another site may
      have its name point here (DNS rebinding).
    - An ``Origin`` other than this server: pages of other sites must not send requests.
    - Requests that are too large or too slow, or send an image while others fill all places.

    Args:
        app: Application behind the middleware.
        service: Its limits, places and timeout are applied.
        loopback: Whether only this machine may send requests.
        allowed_hosts: Names that a proxy passes on as ``Host`` or ``Origin``, with or without a
            port, in lower case.
    """

    def __init__(self,
                 app: App,
                 *,
                 service: Service,
                 loopback: bool,
                 allowed_hosts: tuple[str, ...] = ()) -> None:
        self.app, self.loopback = app, loopback
        self.service, self.allowed_hosts = service, allowed_hosts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope['type'] != 'http':
            if scope['type'] == 'lifespan':
                await self.app(scope, receive, send)
            return
        has_image = scope['method'] == 'POST' and scope['path'].startswith(IMAGE_ROUTES)
        send = add_headers(send)
        receive = limit_time(receive, self.service)
        with ExitStack() as stack:
            try:
                self.check(scope['path'], Headers(scope=scope), has_image=has_image)
                if has_image:
                    stack.enter_context(self.service.uploads.take())
            except (HTTPException, ServerBusyError) as error:
                refusal = build_refusal(error)
                if refusal.status_code in (413, 503):
                    await discard_body(receive)
                await refusal(scope, receive, send)
                return
            with suppress(ClientDisconnect):  # nobody waits for the answer
                await self.app(scope, self.limit_bytes(receive, has_image=has_image), send)

    def check(self, path: str, headers: Headers, *, has_image: bool = False) -> None:
        """Raise an HTTPException for a request that is refused for its headers."""
        host, origin = headers.get('host', ''), headers.get('origin')
        is_known = get_name(host) in LOOPBACK or self.is_allowed(host) or path == HEALTH
        if not is_known and (self.loopback or self.allowed_hosts):
            names = ', '.join(('localhost', *self.allowed_hosts))
            raise HTTPException(
                421, f'this server is {names}, not {host!r}: start it with --allowed-host if a '
                'proxy passes this name on')
        if origin is not None and get_host(origin) != host and not self.is_allowed(
                get_host(origin)):
            raise HTTPException(
                403, f'requests from {origin!r} are refused: start the server with --allowed-host '
                'if this is the name of a proxy before it')
        if self.service.ending:
            raise HTTPException(503, SHUTDOWN_MESSAGE, RETRY)
        length = headers.get('content-length') or '0'
        if not length.isdecimal():
            raise HTTPException(400, f'content-length must be a number, got {length!r}')
        self.check_num_bytes(int(length[:20]), has_image=has_image)

    def check_num_bytes(self, num_bytes: int, *, has_image: bool) -> None:
        """Raise an HTTPException for a body that is too large."""
        max_bytes = self.service.limits.max_bytes
        if has_image and num_bytes > max_bytes + FORM_BYTES:
            raise HTTPException(413, too_many_bytes(max_bytes))
        if not has_image and num_bytes > MAX_BODY_BYTES:
            raise HTTPException(
                413, f'the request has more than {MAX_BODY_BYTES} bytes and sends no file')

    def is_allowed(self, host: str | None) -> bool:
        """Return True if a host, with or without its port, is one that a proxy passes on."""
        host = (host or '').lower()
        return host in self.allowed_hosts or get_name(host) in self.allowed_hosts

    def limit_bytes(self, receive: Receive, *, has_image: bool) -> Receive:
        """Raise an HTTPException when too much arrives, whatever was announced."""
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get('body', b''))
            self.check_num_bytes(num_bytes, has_image=has_image)
            return message

        return limited


def get_name(host: str) -> str | None:
    """Return the name in a ``Host``, without its port."""
    try:
        return urlsplit(f'//{host}').hostname
    except ValueError:
        return None


def get_host(origin: str) -> str | None:
    """Return the host and port of an ``Origin``; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def add_headers(send: Send) -> Send:
    """Add ``HEADERS`` to a response."""

    async def wrapped(message: Message) -> None:
        if message['type'] == 'http.response.start':
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return wrapped


async def discard_body(receive: Receive) -> None:
    """Read a body and forget it: many clients see no answer before they have sent all."""
    remaining, more = MAX_DISCARDED_BYTES, True
    with suppress(HTTPException):  # of a body that does not arrive
        while more and remaining > 0:
            message = await receive()
            remaining -= len(message.get('body', b''))
            more = message.get('more_body', False)


def limit_time(receive: Receive, service: Service) -> Receive:
    """Raise an HTTPException for a body that does not arrive.

    Args:
        receive: Gives the messages of a request.
        service: A body must arrive within its timeout, and before it ends.
    """
    started, complete = monotonic(), False

    async def wrapped() -> Message:
        nonlocal complete
        if complete:  # the next message says that the client is gone
            return await receive()
        last = min(started + service.timeout, monotonic() + STALL_SECONDS)
        while True:
            try:
                message = await asyncio.wait_for(receive(), TICK_SECONDS)
            except asyncio.TimeoutError:  # noqa: UP041  # Python 3.10 has another TimeoutError
                if service.ending:
                    raise HTTPException(503, SHUTDOWN_MESSAGE, RETRY) from None
                if monotonic() > last:
                    raise HTTPException(408, 'the rest of the request does not arrive') from None
            else:
                complete = not message.get('more_body', False)
                return message

    return wrapped


def build_refusal(error: HTTPException | ServerBusyError) -> JSONResponse:
    """Return the response to a request that is refused."""
    if isinstance(error, ServerBusyError):
        return JSONResponse(dict(detail=str(error)), 503, RETRY)
    return JSONResponse(dict(detail=error.detail), error.status_code, error.headers)
