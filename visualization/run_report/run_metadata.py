"""What a run says of itself: how it was started, with which settings, and what it uses."""
from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from colonnade.engine.distributed.fingerprints import data_of
from colonnade.settings.config_values import flat, plain

SPLITS = dict(training='train_dataloader', validation='val_dataloader')


def about_run(runner: Runner, before: dict[str, Any]) -> dict[str, Any]:
    """What ``run.json`` says at the start of a run, or of the rest of one."""
    cfg = runner.cfg
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    batch = (cfg.train_dataloader or {}).get('batch_size')
    start = dict(time=utc(), iteration=runner.iter, processes=get_world_size())
    known = {key: before[key] for key in ('kind', 'classes', 'palette') if key in before}
    return known | dict(
        state='running',
        starts=[*before.get('starts', ()), start],
        seconds=before.get('seconds', 0.),
        max_iters=runner.max_iters,
        seconds_of_recording=before.get('seconds_of_recording', 0.),
        batch=batch * get_world_size() if batch else None,
        seed=runner.seed,
        parameters=sum(each.numel() for each in model.parameters()),
        **main_metric(runner),
        config_file=Path(cfg.filename or f'{runner.timestamp}.py').name,
        config=flat(plain(cfg.to_dict())),
        peak_memory=before.get('peak_memory', 0.),
        peak_gpu_memory=before.get('peak_gpu_memory', 0.))


def main_metric(runner: Runner) -> dict[str, str]:
    """The metric that the best checkpoint is chosen by, and its rule; empty if none is named."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook.save_best:
            name, rule = hook.key_indicators[0], hook.rules[0]
            return {} if name == 'auto' else dict(main_metric=name, rule=rule)
    return {}


def data_of_run(runner: Runner, known: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the number of images and the hashes of each split.

    Args:
        runner: Runner of a training.
        known: Hashes that were computed before, by path.
    """
    sets = dict(training=runner.train_dataloader.dataset)
    if runner.val_loop is not None:
        sets['validation'] = runner.val_loop.dataloader.dataset
    return {
        split: dict(images=len(dataset), files=data_of(runner.cfg, SPLITS[split], known))
        for split, dataset in sets.items()
    }


def changed_data(before: dict[str, Any], about: dict[str, Any]) -> list[str]:
    """The parts of the data that are not those of an earlier start."""
    then, now = before.get('data', {}), about['data']
    return [split for split in then if split in now and then[split] != now[split]]


def memory(about: dict[str, Any]) -> dict[str, float]:
    """The most memory that this process has used, in GiB, of the host and of its GPU."""
    unit = 1 if sys.platform == 'darwin' else 1024
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    gpu = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.
    return dict(
        peak_memory=max(host, about['peak_memory']),
        peak_gpu_memory=max(gpu, about['peak_gpu_memory']))


def utc() -> str:
    """The time, to the second."""
    return f'{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC'
