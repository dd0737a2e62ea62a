"""From a config to a runner, for one process or several, with a GPU or without."""
from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import METRICS, RUNNERS
from mmengine.runner import Runner
from mmengine.visualization import Visualizer

from colonnade.common.distributed import (VARIABLES, check_launcher, join_on_cpus,
                                          on_several_machines)
from colonnade.common.errors import file_errors
from colonnade.common.locking import locked
from colonnade.settings.backbone_config import settle_backbone
from colonnade.settings.dataset_paths import evaluators
from colonnade.settings.known_settings import names_of_type
from colonnade.settings.reading import build_error

from ..components import StrictRunner
from .hooks import drop_absent_hooks

PATIENCE = 1800  # seconds that processes wait for each other


def build_runner(cfg: Config) -> Runner:
    """The runner that the config asks for, also for several processes without a GPU.

    Raises:
        ValueError: If several processes are to be started in a way that needs GPUs, or if a part of
            the config cannot be built.
    """
    check_launcher(cfg.launcher)
    set_timeout(cfg)
    if cfg.launcher != 'none' and get_device() == 'cpu':
        _use_gloo(cfg)
    if on_several_machines(cfg.launcher):
        gather_by_messages(cfg)
    drop_absent_hooks(cfg)
    settle_backbone(cfg.model)
    free_visualizer_name(cfg)
    with build_error():
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else StrictRunner.from_cfg(cfg)
    return runner


def set_timeout(cfg: Config) -> None:
    """Let processes wait for each other as long with GPUs as without, unless the config says else.

    torch's limit for NCCL is 10 minutes, which slow storage takes, and in which nobody could say
    which process hangs.

    Args:
        cfg: Changed in place.
    """
    if cfg.get('env_cfg') is None:
        cfg.env_cfg = ConfigDict()
    if cfg.env_cfg.get('dist_cfg') is None:
        cfg.env_cfg.dist_cfg = ConfigDict()
    cfg.env_cfg.dist_cfg.setdefault('timeout', PATIENCE)


def free_visualizer_name(cfg: Config) -> None:
    """Let mmengine name a run's visualizer, if the config's name is that of an earlier run.

    mmengine would hand out the visualizer of that run of this process, which writes to its folder.

    Args:
        cfg: Changed in place.
    """
    visualizer = cfg.get('visualizer')
    if isinstance(visualizer, dict) and \
            Visualizer.check_instance_created(visualizer.get('name', '')):
        del visualizer['name']


@contextmanager
def lock_work_dir(cfg: Config, *others: Path) -> Iterator[None]:
    """While open, no other run trains in this work dir; no file is left behind.

    Args:
        cfg: Of the run.
        *others: Folders that it also writes to.

    Raises:
        UserError: If another run does.
    """
    rank = VARIABLES.get(cfg.launcher, ('', ))[0]
    if int(os.environ.get(rank, 0)):  # the first process locks for all
        yield
        return
    with ExitStack() as stack:
        for folder in dict.fromkeys([Path(cfg.work_dir), *others]):
            with file_errors():
                folder.mkdir(parents=True, exist_ok=True)
            complaint = (f'another run is training in {folder}: wait for its end, or name another '
                         '--work-dir')
            if not stack.enter_context(locked(folder, complaint)):
                print_log(
                    f'the file system of {folder} has no locks: let no other run train there',
                    level=logging.WARNING)
        yield


def _use_gloo(cfg: Config) -> None:
    """Where mmengine takes a GPU for granted, say what holds for a CPU."""
    join_on_cpus(cfg.launcher, cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout'))
    cfg.merge_from_dict({
        'env_cfg.dist_cfg.backend': 'gloo',
        'model_wrapper_cfg': {
            'type': 'MMDistributedDataParallel',
            'device_ids': None,
            'broadcast_buffers': False,
            'find_unused_parameters': cfg.get('find_unused_parameters', False),
        },
    })
    cfg.sync_bn = None  # torch's SyncBatchNorm takes GPU tensors only


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
