"""One of two processes of which the second fails in several ways; prints what each raises."""
from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

from mmengine.dist import all_gather_object
from torch import distributed

from colonnade.common.distributed import raise_on_all_ranks, run_on_first_rank
from colonnade.common.errors import FileError, UserError
from colonnade.visualization.run_report.recorder import RunRecord


def do_nothing() -> None:
    """Succeed."""


def fill_disk() -> None:
    """Fail as a disk does."""
    raise FileError(28, 'full')


def break_down() -> None:
    """Fail as a bug does."""
    raise KeyError('a bug')


def say(name: str, *works: Callable[[], None]) -> None:
    """Print what failing together raises in this process.

    Args:
        name: Name of the case.
        *works: Function of each process.
    """
    try:
        with raise_on_all_ranks():
            works[int(os.environ['RANK'])]()
    except Exception as error:
        print(f'{name}: {type(error).__name__} {error}')


def refuse() -> None:
    """Fail as a check does."""
    raise UserError('no such key')


def say_of_first(name: str, work: Callable[[], None]) -> None:
    """Print what the work of the first process raises in this one."""
    try:
        run_on_first_rank(work)
    except Exception as error:
        print(f'{name}: {type(error).__name__} {error}')


def record() -> None:
    """Record an evaluation of which the second process found what cannot be sent."""
    record, loader = RunRecord(), SimpleNamespace(dataset=[0, 0])
    record.strict = False
    if os.environ['RANK'] == '1':
        record.images = [lambda: None]
    record.after_val_epoch(SimpleNamespace(val_loop=SimpleNamespace(dataloader=loader), cfg={}), {})


def main() -> None:
    distributed.init_process_group('gloo')
    say('first disk', fill_disk, do_nothing)
    say('disk', do_nothing, fill_disk)
    say('bug', do_nothing, break_down)
    say('both', fill_disk, break_down)
    say_of_first('first', break_down)
    say_of_first('check', refuse)
    record()
    print('together:', all_gather_object(int(os.environ['RANK'])))
    distributed.barrier()  # none may leave while the other still talks
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
