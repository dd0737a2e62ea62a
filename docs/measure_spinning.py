"""Measure how long OpenMP threads should spin on shared machines.

    python docs/measure_spinning.py                       # takes minutes on two cores
    python docs/measure_spinning.py --counts 1000 30000 --neighbors loop

Each value of GOMP_SPINCOUNT has a process of its own, alone and beside others that compute.
"""
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

JOBS = {  # column -> backbone, side of the image, whether a training step
    'S12, 224²': ('XCiT:small_12_p16', 224, False),
    'S12, 512²': ('XCiT:small_12_p16', 512, False),
    'N12, 512², step': ('XCiT:nano_12_p16', 512, True),
}
LOOP = 'while True: pass'
NEIGHBOURS = ('none', 'loop', 'model')


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--counts',
        nargs='+',
        default=['default', '1000', '3000', '10000', '30000', '100000'],
        help="values of GOMP_SPINCOUNT; 'default' leaves it unset")
    parser.add_argument(
        '--neighbors',
        nargs='+',
        choices=NEIGHBOURS,
        default=NEIGHBOURS,
        help='alone, beside a loop of one thread, beside a second such process')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--child', choices=('time', 'forever'), help=argparse.SUPPRESS)
    return parser.parse_args()


def environment(count: str) -> dict[str, str]:
    """This process's, with a value of GOMP_SPINCOUNT or without one."""
    rest = {key: value for key, value in os.environ.items() if key != 'GOMP_SPINCOUNT'}
    return rest if count == 'default' else {**rest, 'GOMP_SPINCOUNT': count}


@contextmanager
def run_next_to(neighbor: str, count: str) -> Iterator[None]:
    """Another process computes while this is open."""
    if neighbor == 'none':
        yield
        return
    command = ['-c', LOOP] if neighbor == 'loop' else [__file__, '--child', 'forever']
    with subprocess.Popen([sys.executable, *command],
                          env=environment(count),
                          stdout=subprocess.PIPE,
                          text=True) as process:
        try:
            if neighbor == 'model':
                assert process.stdout is not None
                process.stdout.readline()  # it has begun
            yield
        finally:
            process.kill()


def seconds_of(count: str, neighbor: str, rounds: int) -> list[float]:
    """Return the median of each job."""
    with ExitStack() as stack:
        stack.enter_context(run_next_to(neighbor, count))
        done = subprocess.run(
            [sys.executable, __file__, '--child', 'time', '--rounds',
             str(rounds)],
            env=environment(count),
            check=True,
            stdout=subprocess.PIPE,
            text=True)
    return [float(word) for word in done.stdout.split()]


def run_child(args: argparse.Namespace) -> None:
    """Time the jobs, or run the second of them without end."""
    import torch

    from colonnade.evaluation.benchmark.measurement import Job, time_in_turns
    jobs = [
        Job(backbone, (side, side), 1, train, False, 'cpu', torch.get_num_threads())
        for backbone, side, train in JOBS.values()
    ]
    if args.child == 'forever':
        print('begun', flush=True)
        while True:
            time_in_turns(jobs[1], ['ours'], 100)
    for job in jobs:
        print(statistics.median(time_in_turns(job, ['ours'], args.rounds)['ours']))


def main() -> None:
    """Print a line for each value."""
    args = parse_args()
    if args.child:
        run_child(args)
        return
    print('| GOMP_SPINCOUNT | beside |', *(f' {name} |' for name in JOBS), sep='')
    print('|---|---|', *('---|' for _ in JOBS), sep='')
    for neighbor in args.neighbors:
        for count in args.counts:
            seconds = seconds_of(count, neighbor, args.rounds)
            print(
                f'| {count} | {neighbor} |', *(f' {s:.3f} |' for s in seconds), sep='', flush=True)


if __name__ == '__main__':
    main()
