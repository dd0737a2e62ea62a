"""Connections of all processes of a job to the first one, to which no stranger has the key."""
from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from threading import Thread
from typing import Any

from mmengine.dist import all_gather_object, broadcast_object_list, get_rank, get_world_size

LOOPBACK, ANY = '127.0.0.1', '0.0.0.0'
LARGEST = 10**5  # bytes of a message

_open: set[Connection] = set()  # of this process


def _close_in_child() -> None:
    """Keep a fork, such as a worker that outlives its killed parent, from holding connections."""
    for link in _open:
        link.close()
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


def connect(several_machines: bool) -> dict[int, Connection] | None:
    """Connect the first process with each other one; all processes call it.

    Args:
        several_machines: Whether processes run on more than one.

    Returns:
        The connections of this process by the number of the other one, None if some process cannot
        connect.
    """
    if get_rank() == 0:
        links = accept_all(several_machines)
    else:
        place: list[Any] = [None]
        broadcast_object_list(place)
        links = {}
        try:
            host, port, key = place[0]
            links[0] = Client((host, port), authkey=bytes.fromhex(key))
            send(links[0], dict(rank=get_rank()))
        except (OSError, EOFError):
            pass
        if not all(all_gather_object(bool(links))):
            links = {}
    _open.update(links.values())
    return links or None


def accept_all(several_machines: bool) -> dict[int, Connection]:
    """Wait for the connections of all other processes; empty if one of them cannot connect."""
    key = secrets.token_bytes(32)
    links: dict[int, Connection] = {}
    number = get_world_size() - 1
    with Listener((ANY if several_machines else LOOPBACK, 0), authkey=key, backlog=number) as door:

        def accept() -> None:
            while len(links) < number:
                try:
                    link = door.accept()
                    links[receive(link)['rank']] = link
                except (AuthenticationError, EOFError, ConnectionError):  # a stranger
                    continue

        waiting = Thread(target=accept, name='colonnade-door', daemon=True)
        waiting.start()
        host = os.environ.get('MASTER_ADDR', LOOPBACK) if several_machines else LOOPBACK
        broadcast_object_list([(host, door.address[1], key.hex())])
        if not all(all_gather_object(True)):
            return {}
        waiting.join()
    return links


def send(link: Connection, message: dict[str, Any]) -> None:
    """Send a message, unless the other process has ended."""
    try:
        link.send_bytes(json.dumps(message).encode())
    except OSError:
        pass


def receive(link: Connection) -> dict[str, Any]:
    """The next message.

    Raises:
        EOFError: If the other process has ended.
    """
    try:
        return json.loads(link.recv_bytes(LARGEST))
    except OSError as error:
        raise EOFError from error


def close(links: Iterable[Connection]) -> None:
    """Close connections."""
    for link in links:
        _open.discard(link)
        link.close()
