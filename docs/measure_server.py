"""Measure a server under load.

    python docs/measure_server.py sem_fpn/xcit_nano_12_p16_slim_shapes iter_500.pth image.jpg

Starts ``colonnade serve``, and sends the image from 1, 8 and 32 clients at once, each after the
response to its last. Prints requests per second, latencies, memory and the status codes.
"""
from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

MEMORY = re.compile(r'^process_resident_memory_bytes (\S+)', re.MULTILINE)
TIMEOUT = 120.


@contextmanager
def start_server(arguments: list[str]) -> Iterator[str]:
    """Context manager of a server with these arguments; returns its URL."""
    command = [sys.executable, '-m', 'colonnade', 'serve', *arguments, '--port', '0']
    env = {key: value for key, value in os.environ.items() if key != 'COLONNADE_TOKEN'}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := re.search(r'serving on (\S+)', line):
                    yield match[1]
                    return
            raise SystemExit('the server did not start')
        finally:
            process.terminate()


def send(url: str, content: bytes, count: int) -> list[tuple[int, float]]:
    """Send requests one after another, and return their status codes and seconds."""
    found = []
    with httpx.Client(timeout=TIMEOUT) as client:
        for _ in range(count):
            start = time.perf_counter()
            status = client.post(f'{url}/api/predict', content=content).status_code
            found.append((status, time.perf_counter() - start))
    return found


def measure(url: str, content: bytes, clients: int, requests: int) -> Counter[int]:
    """Print a row for a number of clients, and return how often each status code came."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        shares = [requests // clients] * clients
        rows = [row for part in pool.map(lambda n: send(url, content, n), shares) for row in part]
    elapsed = time.perf_counter() - start
    percent = statistics.quantiles([seconds for _, seconds in rows], n=100)
    memory = MEMORY.search(httpx.get(f'{url}/metrics').text)
    size = f'{float(memory[1]) / 2**20:,.0f}' if memory else 'unknown'
    print(
        f'| {clients} | {len(rows):,} | {len(rows) / elapsed:.1f} | {1e3 * percent[49]:.0f} | '
        f'{1e3 * percent[98]:.0f} | {size} |',
        flush=True)
    return Counter(status for status, _ in rows)


def main() -> None:
    """Measure each number of clients on one server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('image', type=argparse.FileType('rb'))
    parser.add_argument('--clients', type=int, nargs='+', default=[1, 8, 32])
    parser.add_argument('--requests', type=int, default=3200, help='for each number of clients')
    parser.add_argument('--batch-ms', default='0')
    args = parser.parse_args()
    content, statuses = args.image.read(), Counter[int]()
    with start_server([args.config, args.checkpoint, '--batch-ms', args.batch_ms]) as url:
        send(url, content, 10)  # warm-up
        print('| clients | requests | per second | p50, ms | p99, ms | memory, MiB |')
        print('|---|---|---|---|---|---|')
        for clients in args.clients:
            statuses += measure(url, content, clients, args.requests)
    print('status codes:', ', '.join(f'{code} × {n:,}' for code, n in sorted(statuses.items())))


if __name__ == '__main__':
    main()
