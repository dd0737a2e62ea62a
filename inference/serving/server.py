"""Start of the server: address, model, application."""
from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from colonnade.common.errors import FileError, UserError
from colonnade.configs import find_config
from colonnade.models.fusion import is_fused

from .. import Model, load
from ..loading import CHECKPOINTS
from ..options import ServeOptions
from .connection_limits import LimitedProtocol
from .json_api import build_api
from .middleware import RequestGuard
from .service import Service, affordable_pixels
from .static_page import add_page
from .uploads import MEGABYTE, Limits

SECONDS_TO_END = 1  # for open connections, when all is answered
SECONDS_TO_FINISH = 20  # for requests in work; Kubernetes kills after 30


def serve(options: ServeOptions, load_figures: Callable[[], Any]) -> None:
    """Answer until the process is interrupted.

    Args:
        options: Options of the server.
        load_figures: Returns the module that draws figures, see :class:`~.json_api.Figures`. It is
            called once all options are checked.

    Raises:
        OSError: If the address is in use or is none of this machine's, or a file is missing.
        ValueError: If config, weights and options do not fit each other.
    """
    check_limits(options)
    allowed_hosts = tuple(map(check_host, options.allowed_host))
    with ExitStack() as stack:
        listener = stack.enter_context(closing(listen(options.host, options.port)))
        require_weights(options)
        model, load_plain = load_models(options)
        limits = Limits(
            int(options.max_megabytes * MEGABYTE), options.max_pixels
            or min(Limits.max_pixels, affordable_pixels(model)))
        service = stack.enter_context(
            closing(
                Service(
                    model,
                    limits,
                    batch_size=options.batch_size,
                    timeout=options.timeout,
                    load_plain=load_plain)))
        app = build_app(
            service, load_figures(), loopback=is_loopback(listener), allowed_hosts=allowed_hosts)
        announce(listener)
        with suppress(KeyboardInterrupt):  # which uvicorn raises again at its end
            Server(app, service).run(sockets=[listener])


def load_models(options: ServeOptions) -> tuple[Model, Callable[[], Model] | None]:
    """The model that answers, and what loads it for pictures if these need another.

    Raises:
        OSError: If a file is missing.
        ValueError: If config, weights and options do not fit each other.
    """
    load_plain = partial(
        load,
        options.config,
        options.checkpoint,
        device=options.device,
        cfg_options=options.cfg_options,
        trust=options.trust)
    model = load_plain(fuse=options.fuse, amp=options.amp)
    return model, load_plain if is_fused(model.module) or options.amp else None


def require_weights(options: ServeOptions) -> None:
    """Raise a ValueError for a config alone."""
    path = Path(options.config)
    if options.checkpoint is None and not path.is_dir() and path.suffix not in CHECKPOINTS:
        find_config(path)  # raises if there is none
        raise UserError(f'no weights: name the file of a trained model after {path}')


def check_limits(options: ServeOptions) -> None:
    """Raise a ValueError for numbers that make no sense."""
    numbers = dict(
        batch_size=options.batch_size,
        max_megabytes=options.max_megabytes,
        max_pixels=options.max_pixels,
        timeout=options.timeout)
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f'--{name.replace("_", "-")} must be positive and finite, got {value}')


def check_host(name: str) -> str:
    """Return a name of ``--allowed-host`` in lower case.

    Raises:
        ValueError: If it is more than a name with a port or without.
    """
    try:
        parts = urlsplit(f'//{name}')
        is_name = parts.netloc == name and parts.hostname and '@' not in name and '*' not in name
        is_name = is_name and (parts.port is None or parts.port > 0)
    except ValueError:
        is_name = False
    if not is_name:
        raise UserError(f'--allowed-host must be a name like models.example.org, with a port or '
                        f'without, got {name!r}')
    return name.lower()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything that takes time.

    Raises:
        OSError: If it cannot be had; the message names host and port.
    """
    if not 0 <= port <= 65535:
        raise UserError(f'--port must be from 0 to 65535, got {port}')
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise FileError(
                f'port {port} of {host} is in use: choose another with --port') from None
        raise FileError(
            f'cannot listen on {host}, port {port}: {error.strerror or error}') from error


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ip_address(listener.getsockname()[0]).is_loopback


def announce(listener: socket.socket) -> None:
    """Print where the page is, and who may use it."""
    host, port = listener.getsockname()[:2]
    if not is_loopback(listener):
        print(
            f'warning: everybody who can reach this machine may use the model, on {host} port '
            f'{port}; there is no password',
            file=sys.stderr)
    shown = 'localhost' if ip_address(host).is_unspecified else host
    name = f'[{shown}]' if ':' in shown else shown
    print(f'serving on http://{name}:{port} (Ctrl-C ends)', flush=True)


def build_app(service: Service,
              figures: Any,
              *,
              loopback: bool,
              allowed_hosts: tuple[str, ...] = ()) -> Any:
    """Return page and API behind the guard, an ASGI application.

    Args:
        service: Service that answers.
        figures: Module that draws figures, see :class:`~.json_api.Figures`.
        loopback: Whether only this machine may send requests.
        allowed_hosts: Names of this server behind a proxy.
    """
    app = build_api(service, figures)
    add_page(app)
    app.add_middleware(
        RequestGuard, service=service, loopback=loopback, allowed_hosts=allowed_hosts)
    return app


class Server(uvicorn.Server):
    """Server that answers the requests in progress before it ends.

    Args:
        app: ASGI application.
        service: Service behind it.
    """

    def __init__(self, app: Any, service: Service) -> None:
        self.service = service
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                log_config=None,  # which would close the files of all loggers of the process
                log_level='warning',
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SECONDS_TO_END))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End when nothing is in progress, or after :data:`SECONDS_TO_FINISH`."""
        logging.getLogger('uvicorn.error').setLevel(logging.CRITICAL)  # of connections cut off
        self.service.ending = True
        for each in self.servers:
            each.close()  # accept no further connections
        last = monotonic() + min(self.service.timeout, SECONDS_TO_FINISH)
        while self.service.is_working() and monotonic() < last and not self.force_exit:
            await asyncio.sleep(0.05)
        self.service.close()
        await super().shutdown(sockets)
