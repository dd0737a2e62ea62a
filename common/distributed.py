"""Operations in which all processes take part."""
from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from mmengine.dist import all_gather_object, broadcast_object_list, get_world_size, is_main_process
from torch.distributed.distributed_c10d import _get_default_store  # 2.12 has no public name

from .errors import FileError, UserError

#: variables that launchers set: rank, world size, rank on the host, processes on the host
VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID', 'SLURM_NTASKS_PER_NODE'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK',
            'OMPI_COMM_WORLD_LOCAL_SIZE'),
}  # yapf: disable
#: limit of the wait for a process that checks data; a process that crashes is noticed earlier
MAX_WAIT = timedelta(hours=12)
Result = TypeVar('Result')
_waits = count()  # equal in all processes, because they wait in the same order


class ProcessError(RuntimeError):
    """An error of another process, with its traceback."""


def raise_on_all_ranks() -> ExitStack:
    """Return a context manager that raises in all processes if its block raises in one.

    Without it, the others would wait for the one that failed.

    Raises:
        FileError: If a file of another process could not be written.
        ProcessError: If another process failed with any other error.
    """
    stack = ExitStack()
    stack.push(_exchange_errors)
    return stack


def _exchange_errors(kind: Any, error: BaseException | None, trace: Any) -> None:
    """Raise the error of another process; ``error`` of this process is raised anyway."""
    report: tuple[int | None, str] | str | None = None
    if isinstance(error, FileError):
        report = error.errno, error.strerror or str(error)
    elif isinstance(error, Exception):
        report = ''.join(traceback.format_exception(error))
    elif error is not None:  # such as KeyboardInterrupt, which all processes get
        return
    reports = all_gather_object(report)
    if isinstance(report, str):
        return
    for rank, report in enumerate(reports):
        if isinstance(report, str):
            raise ProcessError(f'process {rank} failed:\n{report}') from error
    for report in filter(None, reports):
        if error is None:
            raise FileError(*report)


def wait_for_all() -> None:
    """Wait for all processes, for hours if necessary.

    Collective operations have the time limit of a training step, 10 minutes on GPUs.
    """
    if get_world_size() == 1:
        return
    store, name = _get_default_store(), f'colonnade/wait_{next(_waits)}'
    if store.add(name, 1) == get_world_size():
        store.set(f'{name}_is_over', b'')
    store.wait([f'{name}_is_over'], MAX_WAIT)


def run_on_first_rank(work: Callable[[], Result]) -> Result:
    """Return in all processes what the first process computes while the others wait.

    Args:
        work: Function without collective operations, which may take long.

    Raises:
        UserError: In the other processes, if ``work`` raised one, with its message.
        ProcessError: In the other processes, if it raised another error, with its traceback.
    """
    result: list[Any] = [None, None]

    def share(kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UserError):
            result[1] = True, str(error)
        elif isinstance(error, Exception):
            result[1] = False, ''.join(traceback.format_exception(error))
        elif error is not None:  # such as KeyboardInterrupt, which all processes get
            return
        wait_for_all()
        broadcast_object_list(result)

    with ExitStack() as stack:
        stack.push(share)
        if is_main_process():
            result[0] = work()
    if result[1] is not None:
        is_known, text = result[1]
        raise UserError(text) if is_known else ProcessError(f'process 0 failed:\n{text}')
    return result[0]
