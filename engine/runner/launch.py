"""Building a runner from a config, for one or several processes, on GPUs or CPUs."""
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

from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError, file_errors
from colonnade.common.locking import lock_folder
from colonnade.settings.backbone_config import fill_backbone_settings
from colonnade.settings.dataset_paths import iter_evaluators
from colonnade.settings.known_settings import get_argument_names
from colonnade.settings.reading import report_build_errors

from ..components import StrictRunner
from .hooks import remove_null_hooks
from .launchers import check_launcher, has_several_hosts, init_gloo

FOREVER = 365 * 24 * 3600  # seconds


def build_runner(cfg: Config, hang_timeout: float) -> Runner:
    """Return the runner of a config, also for several processes without GPUs.

    Args:
        cfg: Config, changed in place.
        hang_timeout: Seconds that a process may wait for another. 0 means no limit.
    """
    check_launcher(cfg.launcher)
    set_timeout(cfg, hang_timeout)
    if cfg.launcher != 'none' and get_device() == 'cpu':
        _use_gloo(cfg)
    if has_several_hosts(cfg.launcher):
        gather_by_messages(cfg)
    remove_null_hooks(cfg)
    fill_backbone_settings(cfg.model)
    visualizer = cfg.get('visualizer')
    if isinstance(visualizer, dict) and \
            Visualizer.check_instance_created(visualizer.get('name', '')):
        del visualizer['name']  # mmengine would reuse that of an earlier run in this process
    with report_build_errors():
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else StrictRunner.from_cfg(cfg)
    return runner


def set_timeout(cfg: Config, seconds: float) -> None:
    """Set the timeout of collective operations, unless the config sets it; 0 means none.

    torch's default for NCCL is 10 minutes, which slow storage may take.
    """
    if not seconds >= 0:
        raise UserError(f'--hang-timeout must be 0 or more, got {seconds:g}')
    if cfg.get('env_cfg') is None:
        cfg.env_cfg = ConfigDict()
    if cfg.env_cfg.get('dist_cfg') is None:
        cfg.env_cfg.dist_cfg = ConfigDict()
    cfg.env_cfg.dist_cfg.setdefault('timeout', seconds or FOREVER)


@contextmanager
def lock_work_dir(cfg: Config, *others: Path) -> Iterator[None]:
    """Context manager that locks the work dir of a run, and other folders that it writes to."""
    rank = VARIABLES.get(cfg.launcher, ('', ))[0]
    if int(os.environ.get(rank, 0)):  # the first process locks for all
        yield
        return
    with ExitStack() as stack:
        for folder in dict.fromkeys([Path(cfg.work_dir), *others]):
            with file_errors():
                folder.mkdir(parents=True, exist_ok=True)
            message = (f'another run is training in {folder}: wait until it ends, or choose '
                       'another --work-dir')
            if not stack.enter_context(lock_folder(folder, message)):
                print_log(
                    f'the file system of {folder} does not support locks: do not start another '
                    'run in this folder',
                    level=logging.WARNING)
        yield


def _use_gloo(cfg: Config) -> None:
    """Initialize processes on CPUs, where mmengine's defaults require GPUs."""
    init_gloo(cfg.launcher, cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout'))
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
    """Make metrics collect results by messages, unless the config sets how.

    mmengine's default is by files in the working directory, which hosts may not share.
    """
    for metric in iter_evaluators(cfg):
        with METRICS.switch_scope_and_registry(metric.get('_scope_')) as known:
            names = get_argument_names(known.get(metric.get('type', ''))) or ()
        if 'collect_device' in names and not {'collect_device', 'collect_dir'} & metric.keys():
            metric.collect_device = 'gpu'  # mmengine's name for it, also without GPUs
