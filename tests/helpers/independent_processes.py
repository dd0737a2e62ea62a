"""Processes of one job that nothing stops if one of them ends, as those of Slurm's srun."""
from __future__ import annotations

import time
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from conftest import ROOT, no_dump_of_forks, run_worker
from torch.distributed import TCPStore


class Ended(NamedTuple):
    """A process that ended.

    Attributes:
        status: With which, None if it had to be killed.
        printed: By it.
    """
    status: int | None
    printed: str


def run_and_say(rank: int, command: list[str], port: int, logs: list[Path]) -> None:
    """Run a process; its last output is in its log too, which is closed by then."""
    try:
        run_worker(rank, command, port, logs)
    except SystemExit as end:
        if isinstance(end.code, str):
            with logs[rank].open('a') as log:
                log.write(f'{end.code}\n')
        raise


def run_independently(*commands: list, out: Path, timeout: float = 100) -> list[Ended]:
    """Run a script's command line in each of several processes, until all end.

    They are forks of this one, with what they need imported. What still runs after ``timeout``
    seconds is killed.
    """
    for name in ('colonnade.engine.training', 'mmseg.datasets'):
        import_module(name)
    store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    logs = [out / f'process_{rank}.txt' for rank in range(len(commands))]
    context = get_context('fork')
    processes = [
        context.Process(target=run_and_say, args=(rank, list(map(str, command)), store.port, logs))
        for rank, command in enumerate(commands)
    ]
    with no_dump_of_forks():
        for process in processes:
            process.start()
    end = time.monotonic() + timeout
    ended = []
    for process in processes:
        process.join(max(0., end - time.monotonic()))
    for process, log in zip(processes, logs, strict=True):
        status = process.exitcode
        process.kill()
        process.join()
        ended.append(Ended(status, log.read_text() if log.exists() else ''))
    return ended


def train(config: Path, *arguments: object) -> list:
    """The command line of a training by several processes."""
    return [ROOT / 'tools/train.py', config, '--launcher', 'pytorch', *arguments]
