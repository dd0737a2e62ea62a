"""Middleware of the server: who can send requests, how much they can send, and what is recorded."""
from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from .access_log import AccessLog
from .service import SHUTDOWN_MESSAGE, ServerBusyError, Service

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({'localhost', '127.0.0.1', '::1'})
#: routes without a token and for any host, which Kubernetes requests by IP address
PROBES = ('/healthz', '/readyz')
IMAGE_ROUTES = ('/api/predict', '/api/image', '/api/figures/')
MAX_BODY_BYTES = 1 << 18  # limit of requests without an image
MAX_DISCARDED_BYTES = 1 << 28  # read from rejected requests, so that clients see the response
FORM_BYTES = 1 << 14  # limit of other content in a form
STALL_SECONDS = 20.  # longest pause while a body is received
TICK_SECONDS = 0.5  # interval of checks whether the server is shutting down
RETRY = {'Retry-After': '2'}  # seconds
CLOSE = {'Connection': 'close'}  # header after which nothing else can be sent
CLOSED = 499  # status in records if the client closed the connection, as nginx has it
HEADERS = {
    'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    'Cross-Origin-Resource-Policy': 'same-origin',
    'Referrer-Policy': 'no-referrer',
    'X-Content-Type-Options': 'nosniff',
}  # yapf: disable


class RequestGuard:
    """Middleware that rejects requests from other sites, and those that are too large or too slow.

    - A ``Host`` other than this host, if the server listens only on a loopback address: the name of
      another site may resolve to this host (DNS rebinding).
    - An ``Origin`` other than this server: pages of other sites must not send requests.
    - Requests that are too large or too slow, or send an image while all slots are taken.
    - Requests without the token, if there is one. Only :data:`PROBES` need none.

    ``allowed_hosts`` are lower-case names that a proxy sends, with or without a port. All requests
    are counted in the metrics of the service, and written to the access log if there is one.
    """

    def __init__(self,
                 app: App,
                 *,
                 service: Service,
                 loopback: bool,
                 allowed_hosts: tuple[str, ...] = (),
                 token: str | None = None,
                 access_log: AccessLog | None = None) -> None:
        self.app, self.loopback = app, loopback
        self.service, self.allowed_hosts = service, allowed_hosts
        self.token, self.access_log = token, access_log

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request to the application, or reject it."""
        if scope['type'] != 'http':
            if scope['type'] == 'lifespan':
                await self.app(scope, receive, send)
            return
        path = scope['path'].removeprefix(scope.get('root_path', ''))
        has_image = scope['method'] == 'POST' and path.startswith(IMAGE_ROUTES)
        start, status, num_bytes = monotonic(), CLOSED, 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status, num_bytes
            if message['type'] == 'http.response.start':
                MutableHeaders(scope=message).update(HEADERS)
                status = message['status']
            num_bytes += len(message.get('body', b''))
            await send(message)

        receive = limit_time(receive, self.service)
        with ExitStack() as stack:
            stack.callback(lambda: self.record(scope, path, status, num_bytes, monotonic() - start))
            try:
                self.check(path, Headers(scope=scope), has_image=has_image)
                if has_image:
                    stack.enter_context(self.service.uploads.take())
            except ServerBusyError as error:
                await reject(
                    HTTPException(503, str(error), RETRY), scope, receive, send_with_headers)
            except HTTPException as error:
                await reject(error, scope, receive, send_with_headers)
            else:
                receive = self.limit_bytes(receive, has_image=has_image)
                try:
                    await self.app(scope, receive, send_with_headers)
                except ClientDisconnect:
                    pass
                except Exception:  # Starlette's outer middleware responds
                    status = 500
                    raise

    def record(self, scope: MutableMapping[str, Any], path: str, status: int, num_bytes: int,
               seconds: float) -> None:
        """Count a finished request, and write it to the access log."""
        self.service.metrics.add_request(path, status, seconds)
        if self.access_log:
            self.access_log.add(
                client=(scope.get('client') or (None, ))[0],
                method=scope['method'],
                path=path,
                status=status,
                num_bytes=num_bytes,
                seconds=seconds)

    def check(self, path: str, headers: Headers, *, has_image: bool = False) -> None:
        """Raise an HTTPException if a request is rejected because of its headers."""
        host, origin = headers.get('host', ''), headers.get('origin')
        is_known = split_url(f'//{host}').hostname in LOOPBACK or self.is_allowed(
            host) or path in PROBES or (path == '/metrics' and not self.loopback)
        if not is_known and (self.loopback or self.allowed_hosts):
            names = ', '.join(('localhost', *self.allowed_hosts))
            raise HTTPException(
                421, f'this server is {names}, not {host!r}: if this is the name of a proxy, start '
                'the server with --allowed-host')
        if origin is not None:
            origin_host = split_url(origin).netloc
            if origin_host != host and not self.is_allowed(origin_host):
                raise HTTPException(
                    403, f'requests from {origin!r} are rejected: if this is the name of a proxy, '
                    'start the server with --allowed-host')
        if self.token and path not in PROBES:
            scheme, _, given = headers.get('authorization', '').partition(' ')
            is_right = hmac.compare_digest(given.strip().encode(), self.token.encode())
            if scheme.lower() != 'bearer' or not is_right:
                raise HTTPException(401, 'this server needs the header "Authorization: Bearer '
                                    'TOKEN"', {'WWW-Authenticate': 'Bearer'})
        if self.service.is_ending and path != '/healthz':
            raise HTTPException(503, SHUTDOWN_MESSAGE, RETRY)
        length = headers.get('content-length') or '0'
        if not length.isdecimal():
            raise HTTPException(400, f'content-length must be a number, got {length!r}')
        self.check_num_bytes(int(length[:20]), has_image=has_image)

    def check_num_bytes(self, num_bytes: int, *, has_image: bool) -> None:
        """Raise an HTTPException if a body is too large."""
        limits = self.service.limits
        if has_image and num_bytes > limits.max_bytes + FORM_BYTES:
            raise HTTPException(413, str(limits.build_size_error()))
        if not has_image and num_bytes > MAX_BODY_BYTES:
            raise HTTPException(
                413, f'the request has more than {MAX_BODY_BYTES} bytes, but sends no file')

    def is_allowed(self, host: str) -> bool:
        """Return True if a host, with or without its port, is in ``allowed_hosts``."""
        return bool({host.lower(), split_url(f'//{host}').hostname} & {*self.allowed_hosts})

    def limit_bytes(self, receive: Receive, *, has_image: bool) -> Receive:
        """Wrap ``receive`` to raise an HTTPException if a body exceeds its announced size."""
        num_bytes = 0

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get('body', b''))
            self.check_num_bytes(num_bytes, has_image=has_image)
            return message

        return receive_limited


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL, which are empty if it is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit('')


async def reject(error: HTTPException, scope: MutableMapping[str, Any], receive: Receive,
                 send: Send) -> None:
    """Send the response to a rejected request."""
    if error.status_code in (413, 503):
        # Many clients see no response before they have sent the body.
        remaining, more = MAX_DISCARDED_BYTES, True
        with suppress(HTTPException):  # The body does not arrive.
            while more and remaining > 0:
                message = await receive()
                remaining -= len(message.get('body', b''))
                more = message.get('more_body', False)
    response = JSONResponse(dict(detail=error.detail), error.status_code, error.headers)
    await response(scope, receive, send)


def limit_time(receive: Receive, service: Service) -> Receive:
    """Wrap ``receive`` to raise an HTTPException if a body does not arrive.

    Its time limits are the timeout of the service, :data:`STALL_SECONDS` and the shutdown.
    """
    start, is_complete = monotonic(), False

    async def receive_limited() -> Message:
        nonlocal is_complete
        if is_complete:  # The next message is that the client disconnects.
            return await receive()
        deadline = min(start + service.timeout, monotonic() + STALL_SECONDS)
        while True:
            try:
                message = await asyncio.wait_for(receive(), TICK_SECONDS)
            except asyncio.TimeoutError:  # noqa: UP041  # Python 3.10 has another TimeoutError
                if service.is_ending:
                    raise HTTPException(503, SHUTDOWN_MESSAGE, RETRY | CLOSE) from None
                if monotonic() > deadline:
                    raise HTTPException(408, 'the rest of the request did not arrive',
                                        CLOSE) from None  # yapf: disable
            else:
                is_complete = not message.get('more_body', False)
                return message

    return receive_limited
