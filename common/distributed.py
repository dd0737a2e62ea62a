"""Operations in which all processes take part."""
from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Context manager that raises in all processes if its block raises in one.

    Without it, the others would wait for the one that failed.

    Raises:
        FileError: If a file of another process could not be written.
        ProcessError: If another process failed with any other error.
    """
    failure: Exception | None = None
    report: tuple[int | None, str] | str | None = None
    try:
        yield
    except FileError as error:
        failure, report = error, (error.errno, error.strerror or str(error))
    except Exception as error:  # raised again below, once the other processes know of it
        failure, report = error, ''.join(traceback.format_exception(error))
    reports = all_gather_object(report)
    if failure is not None and not isinstance(failure, FileError):
        raise failure
    for rank, report in enumerate(reports):
        if isinstance(report, str):
            raise ProcessError(f'process {rank} failed:\n{report}') from failure
    for report in filter(None, reports):
        raise failure or FileError(*report)


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
    if is_main_process():
        try:
            result[0] = work()
        except Exception as error:  # raised again, once the other processes know of it
            wait_for_all()
            is_known = isinstance(error, UserError)
            text = str(error) if is_known else ''.join(traceback.format_exception(error))
            broadcast_object_list([None, (is_known, text)])
            raise
    wait_for_all()
    broadcast_object_list(result)
    if result[1] is not None:
        is_known, text = result[1]
        raise UserError(text) if is_known else ProcessError(f'process 0 failed:\n{text}')
    return result[0]
