"""The command ``colonnade serve``: address, model, application."""
from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import re
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from colonnade.common.errors import FileError, UserError
from colonnade.configs import find_config
from colonnade.models.fusion import is_fused

from .. import Model, load
from ..loading import CHECKPOINTS
from ..options import ServeOptions
from .access_log import AccessLog
from .json_api import add_page, build_api
from .middleware import RequestGuard
from .service import Service, compute_max_pixels
from .uploads import MEGABYTE, Limits

MAX_CONNECTIONS = 512  # half of the usual limit of open files
CHECK_SECONDS = 20.
TOKEN_VARIABLE = 'COLONNADE_TOKEN'
BUSY_RESPONSE = (b'HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\n'
                 b'Connection: close\r\n\r\n')


class CountingTransport:
    """A transport that counts written bytes in ``num_written``."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport, self.num_written = transport, 0

    def write(self, data: bytes) -> None:
        """Count and write data."""
        self.num_written += len(data)
        self.transport.write(data)

    def count_sent(self) -> int:
        """Return the number of bytes that have left this process."""
        return self.num_written - self.transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class LimitedProtocol(H11Protocol):
    """An HTTP connection that is closed if its client neither sends a request nor reads."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or respond 503 if there are too many."""
        self.counting = CountingTransport(transport)
        super().connection_made(self.counting)  # type: ignore[arg-type]
        self.num_responses = 0
        self.last_state = (-1, -1)
        self.check_timer = self.loop.call_later(CHECK_SECONDS, self.check)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(BUSY_RESPONSE)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self.check_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Count a response."""
        self.num_responses += 1
        super().on_response_complete()

    def check(self) -> None:
        """Close the connection if the client did nothing since the last check."""
        in_request = self.cycle is not None and not self.cycle.response_complete
        num_sent = self.counting.count_sent()
        last_responses, last_sent = self.last_state
        is_stuck = num_sent == last_sent and num_sent < self.counting.num_written
        if (not in_request and last_responses == self.num_responses) or is_stuck:
            self.transport.abort()
            return
        self.last_state = (-1 if in_request else self.num_responses, num_sent)
        self.check_timer = self.loop.call_later(CHECK_SECONDS, self.check)


SECONDS_TO_CLOSE = 1  # for open connections once all requests are finished
SECONDS_TO_FINISH = 20  # for requests in progress; Kubernetes kills the process after 30


def serve(options: ServeOptions, figures: ModuleType) -> None:
    """Serve a model until the process is interrupted.

    Args:
        options: Options of the server.
        figures: The module :mod:`colonnade.visualization.figures`.
    """
    for name in ('batch_size', 'max_megabytes', 'max_pixels', 'timeout'):
        value = vars(options)[name]
        if value is not None and not 0 < value < math.inf:
            raise UserError(f'--{name.replace("_", "-")} must be positive and finite, got {value}')
    if not 0 <= options.batch_ms < 1000 * options.timeout:
        raise UserError('--batch-ms must not be negative, and less than --timeout, got '
                        f'{options.batch_ms:g}')
    allowed_hosts = tuple(map(check_host, options.allowed_host))
    root_path = check_root_path(options.root_path)
    token = check_token(os.environ.get(TOKEN_VARIABLE) if options.token is None else options.token)
    with ExitStack() as stack:
        access_log = AccessLog(options.access_log) if options.access_log else None
        if access_log:
            stack.callback(access_log.close)
        listener = stack.enter_context(closing(listen(options.host, options.port)))
        path = Path(options.config)
        if options.checkpoint is None and not path.is_dir() and path.suffix not in CHECKPOINTS:
            find_config(path)  # raises if it does not exist
            raise UserError(f'no weights: pass the checkpoint of a trained model after {path}')
        model, load_plain = load_models(options)
        if model.bands and model.bands.suffixes:
            raise UserError('the model reads several files per image, which cannot be uploaded: '
                            'use colonnade predict')
        has_page = options.page and token is None
        if model.bands and has_page:
            print(
                f'the page takes RGB images only: send images of {model.bands.num_bands} bands to '
                'the API')
        max_pixels = options.max_pixels or min(Limits.max_pixels, compute_max_pixels(model))
        service = Service(
            model,
            Limits(int(options.max_megabytes * MEGABYTE), max_pixels),
            batch_size=options.batch_size,
            timeout=options.timeout,
            patience=options.batch_ms / 1000,
            load_plain=load_plain)
        stack.enter_context(closing(service))
        app = build_app(
            service,
            figures,
            page=has_page,
            loopback=is_loopback(listener),
            allowed_hosts=allowed_hosts,
            token=token,
            access_log=access_log)
        print_address(listener, has_token=token is not None)
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after the shutdown.
            Server(app, service, root_path).run(sockets=[listener])


def load_models(options: ServeOptions) -> tuple[Model, Callable[[], Model] | None]:
    """Return the model, and a function that loads it for figures if these need another one."""
    load_plain = partial(
        load,
        options.config,
        options.checkpoint,
        device=options.device,
        cfg_options=options.cfg_options,
        trust=options.trust)
    model = load_plain(fuse=options.fuse, amp=options.amp)
    return model, load_plain if is_fused(model.module) or options.amp else None


def check_host(name: str) -> str:
    """Return a value of ``--allowed-host`` in lower case."""
    try:
        parts = urlsplit(f'//{name}')
        is_name = parts.netloc == name and parts.hostname and '@' not in name and '*' not in name
        is_name = is_name and (parts.port is None or parts.port > 0)
    except ValueError:
        is_name = False
    if not is_name:
        raise UserError('--allowed-host must be a host name, such as models.example.org, with or '
                        f'without a port, got {name!r}')
    return name.lower()


def check_root_path(path: str) -> str:
    """Return a value of ``--root-path`` without a slash at its end."""
    path = path.rstrip('/')
    if path and not re.fullmatch(r'(/[\w.~-]+)+', path, re.ASCII):
        raise UserError('--root-path must be the path of a URL, such as /models/shapes, got '
                        f'{path!r}')
    return path


def check_token(token: str | None) -> str | None:
    """Return the token, or None if there is none."""
    if token is not None and not re.fullmatch(r'[\w.~+/-]+=*', token, re.ASCII):
        raise UserError(f'--token or {TOKEN_VARIABLE} must consist of letters, digits and -._~+/, '
                        'as HTTP requires (RFC 6750), and must not be empty')
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    if not 0 <= port <= 65535:
        raise UserError(f'--port must be between 0 and 65535, got {port}')
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as stack:
            # With the protocol, asyncio turns off Nagle's algorithm, which delays responses.
            listener = stack.enter_context(
                socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
            stack.pop_all()
            return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise FileError(
                f'port {port} on {host} is already in use: choose another with --port') from None
        raise FileError(
            f'cannot listen on {host}, port {port}: {error.strerror or error}') from error


def is_loopback(listener: socket.socket) -> bool:
    """Return True if only this host can reach a socket."""
    return ip_address(listener.getsockname()[0]).is_loopback


def print_address(listener: socket.socket, *, has_token: bool) -> None:
    """Print the URL, and warn if other hosts can reach it without a token."""
    host, port = listener.getsockname()[:2]
    if not is_loopback(listener) and not has_token:
        print(
            f'warning: anyone who can reach this host can use the model on {host}, port '
            f'{port}, without a password: --token requires one',
            file=sys.stderr)
    name = 'localhost' if ip_address(host).is_unspecified else host
    name = f'[{name}]' if ':' in name else name
    print(f'serving on http://{name}:{port} (press Ctrl-C to stop)', flush=True)


def build_app(service: Service, figures: Any, *, page: bool = True, **guard: Any) -> Any:
    """Return an ASGI application with API and page behind a :class:`RequestGuard`.

    ``guard`` are further arguments of the guard.
    """
    app = build_api(service, figures)
    if page:
        add_page(app)
    app.add_middleware(RequestGuard, service=service, **guard)
    return app


class Server(uvicorn.Server):
    """Server that finishes requests in progress before it shuts down."""

    def __init__(self, app: Any, service: Service, root_path: str = '') -> None:
        self.service = service
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                log_config=None,  # A config would close the files of all loggers of the process.
                log_level='warning',
                access_log=False,
                root_path=root_path,
                server_header=False,
                timeout_graceful_shutdown=SECONDS_TO_CLOSE))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down when no request is in progress, or after :data:`SECONDS_TO_FINISH`."""
        # Hide errors about connections that are cut off.
        logging.getLogger('uvicorn.error').setLevel(logging.CRITICAL)
        self.service.is_ending = True
        for each in self.servers:
            each.close()  # accept no further connections
        deadline = monotonic() + min(self.service.timeout, SECONDS_TO_FINISH)
        while self.service.count_requests() and monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(0.05)
        self.service.close()
        await super().shutdown(sockets)
