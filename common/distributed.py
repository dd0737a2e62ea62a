"""Processes on several machines: how they find each other."""
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

#: what a launcher sets: number of this process, of all, of this machine's, and all on it
VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID', 'SLURM_NTASKS_PER_NODE'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK',
            'OMPI_COMM_WORLD_LOCAL_SIZE'),
}  # yapf: disable
STARTERS = {'pytorch': 'torchrun', 'slurm': 'srun', 'mpi': 'mpirun'}
OWN_STORE = 'TORCH_DISABLE_SHARE_RDZV_TCP_STORE'  # for each start of torchrun
PORT = '29500'  # torch's own, where MASTER_PORT names no other

#: how long processes wait for one that looks at data; one that dies or fails is noticed before
START_LIMIT = timedelta(hours=12)
Answer = TypeVar('Answer')
_waits = count()  # the same in all processes, which wait at the same places


def check_launcher(launcher: str) -> None:
    """Raise a ValueError if a launcher did not start this process.

    A torchrun that would start processes again, but may let them look for those that died, is
    warned of.
    """
    for variable in VARIABLES.get(launcher, ())[:3]:
        if variable not in os.environ:
            raise UserError(f'--launcher {launcher}: the variable {variable} is not set, as '
                            f'{STARTERS[launcher]} does: start the processes with it')
    may_restart = os.environ.get('TORCHELASTIC_MAX_RESTARTS', '0') != '0'
    if launcher == 'pytorch' and may_restart and os.environ.get(OWN_STORE) != '1':
        print_log(
            f'torchrun --max-restarts: set {OWN_STORE}=1 in front of it, or processes that it '
            'starts again may look for those that died',
            level=logging.WARNING)


def join_on_cpus(launcher: str, timeout: float | None = None) -> None:
    """Let the processes of a launcher find each other and talk by gloo, unless they do already.

    mmengine takes a GPU for granted.

    Args:
        launcher: ``'pytorch'`` or ``'slurm'``.
        timeout: Seconds that processes wait for each other; torch's default if not given.

    Raises:
        ValueError: If the launcher starts none without GPUs.
    """
    if launcher not in ('pytorch', 'slurm'):
        raise UserError(f'--launcher {launcher} needs GPUs and there is none here: '
                        'start CPU processes with torchrun and --launcher pytorch')
    if launcher == 'slurm':
        os.environ.update(torch_variables(os.environ))
    if not distributed.is_initialized():
        distributed.init_process_group('gloo', timeout=timeout and timedelta(seconds=timeout))


def torch_variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """What torch reads, from what Slurm sets; as mmengine does it for GPUs.

    Args:
        slurm: The environment of a task. ``MASTER_ADDR`` and ``MASTER_PORT`` are kept.

    Raises:
        ValueError: If Slurm cannot say which machine is the first.
    """
    rank, size, local, _ = (slurm.get(name, '') for name in VARIABLES['slurm'])
    address = slurm.get('MASTER_ADDR') or first_host(slurm.get('SLURM_NODELIST', ''), int(size))
    return dict(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=local, MASTER_ADDR=address,
                MASTER_PORT=slurm.get('MASTER_PORT', PORT))  # yapf: disable


def first_host(nodes: str, num_tasks: int) -> str:
    """The first machine of a list in Slurm's short form, ``gpu[01-04]``.

    Raises:
        ValueError: If Slurm cannot say.
    """
    command = ['scontrol', 'show', 'hostnames', nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        if num_tasks == 1:
            return '127.0.0.1'
        raise UserError(f'--launcher slurm: {" ".join(command)} does not name the first machine '
                        f'({error}): set MASTER_ADDR') from error


def on_several_machines(launcher: str) -> bool:
    """Whether processes run on more than one machine."""
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

    The others would wait for it otherwise.

    Raises:
        FileError: If a file of another process could not be written.
        ProcessError: If another process has any other error, which is no reason to go on.
    """
    failure: Exception | None = None
    said: tuple[int | None, str] | str | None = None
    try:
        yield
    except FileError as error:
        failure, said = error, (error.errno, error.strerror or str(error))
    except Exception as error:
        failure, said = error, ''.join(traceback.format_exception(error))
    reports = all_gather_object(said)
    if failure is not None and not isinstance(failure, FileError):
        raise failure
    for rank, report in enumerate(reports):
        if isinstance(report, str):
            raise ProcessError(f'process {rank} failed:\n{report}') from failure
    for report in filter(None, reports):
        raise failure or FileError(*report)


def wait_for_all() -> None:
    """Wait until all processes have come here, for hours if need be.

    Collective operations have the time limit of a step of training, which is 10 minutes on GPUs.
    """
    if get_world_size() == 1:
        return
    store, name = _get_default_store(), f'colonnade/wait_{next(_waits)}'
    if store.add(name, 1) == get_world_size():
        store.set(f'{name}_is_over', b'')
    store.wait([f'{name}_is_over'], START_LIMIT)


def do_in_first(work: Callable[[], Answer]) -> Answer:
    """Return what the first process computes, in all processes; the others wait for it.

    Args:
        work: Function of the first process that may take long, without collective operations.

    Raises:
        Exception: In the first process, if its work raises one.
        UserError: In the others, if that is a UserError, with its message.
        ProcessError: In the others, if it is another error, with its traceback.
    """
    found: list[Any] = [None, None]
    if is_main_process():
        try:
            found[0] = work()
        except Exception as error:
            wait_for_all()
            is_known = isinstance(error, UserError)
            text = str(error) if is_known else ''.join(traceback.format_exception(error))
            broadcast_object_list([None, (is_known, text)])
            raise
    wait_for_all()
    broadcast_object_list(found)
    if found[1] is not None:
        is_known, text = found[1]
        raise UserError(text) if is_known else ProcessError(f'process 0 failed:\n{text}')
    return found[0]
