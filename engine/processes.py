"""Processes on several machines: how they find each other."""
from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from mmengine.config import Config
from mmengine.dist import all_gather_object
from mmengine.logging import print_log
from mmengine.registry import METRICS
from torch import distributed

from .checkpoint_files import CheckpointError
from .data_sources import evaluators
from .options import names_of_type

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


def check_launcher(launcher: str) -> None:
    """Raise a ValueError if a launcher did not start this process.

    A torchrun that would start processes again, but may let them look for those that died, is
    warned of.
    """
    for variable in VARIABLES.get(launcher, ())[:3]:
        if variable not in os.environ:
            raise ValueError(f'--launcher {launcher}: the variable {variable} is not set, as '
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
        raise ValueError(f'--launcher {launcher} needs GPUs and there is none here: '
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
        raise ValueError(f'--launcher slurm: {" ".join(command)} does not name the first machine '
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


def gather_by_messages(cfg: Config) -> None:
    """Let processes of several machines send each other what they evaluated.

    mmengine's metrics would write it to files in the working folder, which machines may not share.
    What a config says of its metrics stays.

    Args:
        cfg: Changed in place.
    """
    for metric in evaluators(cfg):
        with METRICS.switch_scope_and_registry(metric.get('_scope_')) as known:
            names = names_of_type(known.get(metric.get('type', ''))) or ()
        if 'collect_device' in names and not {'collect_device', 'collect_dir'} & metric.keys():
            metric.collect_device = 'gpu'  # mmengine's name for it, also without one


@contextmanager
def failing_together() -> Iterator[None]:
    """A block that all processes run, and that raises in all if it does so in one.

    The others would wait for it otherwise.

    Raises:
        CheckpointError: If a checkpoint cannot be written.
    """
    failure, said = None, None
    try:
        yield
    except OSError as error:
        failure, said = error, (error.errno, error.strerror or str(error))
    for of_another in filter(None, all_gather_object(said)):
        raise failure or CheckpointError(*of_another)
