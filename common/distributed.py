"""Launchers of processes, and operations in which all processes take part."""
from __future__ import annotations

import logging
import os
import subprocess
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from mmengine.dist import all_gather_object, broadcast_object_list, get_world_size, is_main_process
from mmengine.logging import print_log
from torch import distributed
from torch.distributed.distributed_c10d import _get_default_store  # 2.12 has no public name

from .errors import FileError, UserError

#: variables that launchers set: rank, world size, rank on the host, processes on the host
VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID', 'SLURM_NTASKS_PER_NODE'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK',
            'OMPI_COMM_WORLD_LOCAL_SIZE'),
}  # yapf: disable
COMMANDS = {'pytorch': 'torchrun', 'slurm': 'srun', 'mpi': 'mpirun'}
OWN_STORE = 'TORCH_DISABLE_SHARE_RDZV_TCP_STORE'  # makes each start of torchrun use a new store
DEFAULT_PORT = '29500'  # torch's own default

#: limit of the wait for a process that checks data; a process that crashes is noticed earlier
MAX_WAIT = timedelta(hours=12)
Result = TypeVar('Result')
_waits = count()  # equal in all processes, because they wait in the same order


def check_launcher(launcher: str) -> None:
    """Check that a launcher started this process, and warn of restarts that would fail."""
    for variable in VARIABLES.get(launcher, ())[:3]:
        if variable not in os.environ:
            raise UserError(f'--launcher {launcher}: the variable {variable} is not set: start the '
                            f'processes with {COMMANDS[launcher]}')
    may_restart = os.environ.get('TORCHELASTIC_MAX_RESTARTS', '0') != '0'
    if launcher == 'pytorch' and may_restart and os.environ.get(OWN_STORE) != '1':
        print_log(
            f'torchrun --max-restarts: set {OWN_STORE}=1 for it, or restarted processes may look '
            'for those that crashed',
            level=logging.WARNING)


def init_gloo(launcher: str, timeout: float | None = None) -> None:
    """Initialize a process group on gloo, since mmengine's launchers require GPUs."""
    if launcher not in ('pytorch', 'slurm'):
        raise UserError(f'--launcher {launcher} requires GPUs, and this machine has none: start '
                        'CPU processes with torchrun and pass --launcher pytorch')
    if launcher == 'slurm':
        os.environ.update(get_torch_variables(os.environ))
    if not distributed.is_initialized():
        distributed.init_process_group('gloo', timeout=timeout and timedelta(seconds=timeout))


def get_torch_variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch reads for a Slurm task, as mmengine sets them for GPUs."""
    rank, size, local, _ = (slurm.get(name, '') for name in VARIABLES['slurm'])
    address = slurm.get('MASTER_ADDR') or _find_first_host(
        slurm.get('SLURM_NODELIST', ''), int(size))
    return dict(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=local, MASTER_ADDR=address,
                MASTER_PORT=slurm.get('MASTER_PORT', DEFAULT_PORT))  # yapf: disable


def _find_first_host(nodes: str, num_tasks: int) -> str:
    """Return the first host of a Slurm node list such as ``gpu[01-04]``."""
    command = ['scontrol', 'show', 'hostnames', nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        if num_tasks == 1:
            return '127.0.0.1'
        raise UserError(f'--launcher slurm: {" ".join(command)} does not print the first host '
                        f'({error}): set MASTER_ADDR') from error


def has_several_hosts(launcher: str) -> bool:
    """Return True if processes run on more than one host."""
    if launcher == 'slurm':
        nodes = os.environ.get('SLURM_STEP_NUM_NODES') or os.environ.get('SLURM_NNODES', '1')
        return int(nodes) > 1
    if launcher not in VARIABLES:
        return False
    size, local_size = (int(os.environ.get(VARIABLES[launcher][i], 1)) for i in (1, 3))
    return local_size < size


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
