"""Connections of all processes of a job to the first one, to which no stranger has the key."""
from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from collections.abc import Iterable
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from threading import Event, Thread
from typing import Any

from mmengine.dist import all_gather_object, broadcast_object_list, get_rank, get_world_size

LOOPBACK, ANY = '127.0.0.1', '0.0.0.0'
LARGEST = 10**5  # bytes of a message
HANDSHAKE = 30  # seconds for each message of a handshake

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
        The connections of this process by the rank of the other one, None if some process cannot
        connect.
    """
    links = accept_all(several_machines) if get_rank() == 0 else reach_first()
    if not all(all_gather_object(bool(links))):
        close(links.values())
        return None
    _open.update(links.values())
    return links


def reach_first() -> dict[int, Connection]:
    """Return the connection with the first process, or nothing if it cannot be reached."""
    place: list[Any] = [None]
    broadcast_object_list(place)
    host, port, key = place[0]
    links = {}
    try:
        link = Client((host, port))
        limit_waiting(link, HANDSHAKE)
        answer_challenge(link, bytes.fromhex(key))
        deliver_challenge(link, bytes.fromhex(key))
        limit_waiting(link, 0)
        send(link, dict(rank=get_rank()))
        links[0] = link
    except Exception:  # whatever answers at this address may send anything
        pass
    all_gather_object(bool(links))
    return links


def accept_all(several_machines: bool) -> dict[int, Connection]:
    """Wait for the connections of all other processes.

    Strangers that connect, and say nothing, hold up nobody.

    Returns:
        The connections by rank, or nothing if one is missing.
    """
    key = secrets.token_bytes(32)
    links: dict[int, Connection] = {}
    number, complete = get_world_size() - 1, Event()

    def greet(link: Connection) -> None:
        try:
            limit_waiting(link, HANDSHAKE)
            deliver_challenge(link, key)
            answer_challenge(link, key)
            rank = receive(link)['rank']
            limit_waiting(link, 0)
        except Exception:  # a stranger, who may send anything
            link.close()
            return
        links[rank] = link
        if len(links) == number:
            complete.set()

    def accept() -> None:
        while not complete.is_set():
            try:
                link = Connection(door.accept()[0].detach())
            except TimeoutError:
                continue
            except OSError:  # the door is closed
                return
            Thread(target=greet, args=(link, ), daemon=True).start()

    host = os.environ.get('MASTER_ADDR', LOOPBACK) if several_machines else LOOPBACK
    with socket.create_server((ANY if several_machines else LOOPBACK, 0), backlog=number) as door:
        door.settimeout(1)  # closing it would not wake the thread
        Thread(target=accept, name='colonnade-door', daemon=True).start()
        broadcast_object_list([(host, door.getsockname()[1], key.hex())])
        is_reached = all(all_gather_object(True))
        return links if is_reached and complete.wait(HANDSHAKE) else {}


def limit_waiting(link: Connection, seconds: int) -> None:
    """Let each read and write of a connection fail after a time; 0 for never."""
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, struct.pack('@ll', seconds, 0))


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
