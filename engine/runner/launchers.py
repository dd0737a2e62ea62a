"""Launchers of processes: what they set, and process groups without GPUs."""
from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping
from datetime import timedelta

from mmengine.logging import print_log
from torch import distributed

from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError

COMMANDS = {'pytorch': 'torchrun', 'slurm': 'srun', 'mpi': 'mpirun'}
OWN_STORE = 'TORCH_DISABLE_SHARE_RDZV_TCP_STORE'  # makes each start of torchrun use a new store
DEFAULT_PORT = '29500'  # torch's own default


def check_launcher(launcher: str) -> None:
    """Check that a launcher started this process, and warn of restarts that would fail."""
    for variable in VARIABLES.get(launcher, ())[:3]:
        if variable not in os.environ:
            raise UserError(f'--launcher {launcher}: environment variable {variable} is not set: '
                            f'start the processes with {COMMANDS[launcher]}')
    may_restart = os.environ.get('TORCHELASTIC_MAX_RESTARTS', '0') != '0'
    if launcher == 'pytorch' and may_restart and os.environ.get(OWN_STORE) != '1':
        print_log(
            f'torchrun --max-restarts: set {OWN_STORE}=1, or restarted processes may try to '
            'connect to those that crashed',
            level=logging.WARNING)


def init_gloo(launcher: str, timeout: float | None = None) -> None:
    """Initialize a process group on gloo, since mmengine's launchers require GPUs."""
    if launcher not in ('pytorch', 'slurm'):
        raise UserError(f'--launcher {launcher} requires GPUs, but this machine has none: start '
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
        raise UserError(f'--launcher slurm: {" ".join(command)} did not print the first host '
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
