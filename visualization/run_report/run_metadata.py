"""What ``run.json`` says of a run: how it was started, its settings, and what it uses."""
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

from colonnade.engine.distributed.fingerprints import compute_data_checksums
from colonnade.settings.config_values import flat, plain

SPLITS = dict(training='train_dataloader', validation='val_dataloader')


def describe_start(runner: Runner, before: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``run.json`` at the start of a run.

    Args:
        runner: Runner of the training.
        before: Content that an earlier start wrote; empty if there was none.
    """
    cfg = runner.cfg
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    batch = (cfg.train_dataloader or {}).get('batch_size')
    start = dict(time=format_utc(), iteration=runner.iter, processes=get_world_size())
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
        **find_main_metric(runner),
        config_file=Path(cfg.filename or f'{runner.timestamp}.py').name,
        config=flat(plain(cfg.to_dict())),
        peak_memory=before.get('peak_memory', 0.),
        peak_gpu_memory=before.get('peak_gpu_memory', 0.))


def find_main_metric(runner: Runner) -> dict[str, str]:
    """Return the metric by which the best checkpoint is chosen, and its rule; empty without."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook.save_best:
            name, rule = hook.key_indicators[0], hook.rules[0]
            return {} if name == 'auto' else dict(main_metric=name, rule=rule)
    return {}


def describe_data(runner: Runner, known: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the number of images and the hashes of each split."""
    sets = dict(training=runner.train_dataloader.dataset)
    if runner.val_loop is not None:
        sets['validation'] = runner.val_loop.dataloader.dataset
    return {
        split:
        dict(images=len(dataset), files=compute_data_checksums(runner.cfg, SPLITS[split], known))
        for split, dataset in sets.items()
    }


def find_changed_data(before: dict[str, Any], about: dict[str, Any]) -> list[str]:
    """Return the splits that differ from those of an earlier start."""
    then, now = before.get('data', {}), about['data']
    return [split for split in then if split in now and then[split] != now[split]]


def measure_memory(about: dict[str, Any]) -> dict[str, float]:
    """Return the peak memory of this process in GiB, of the host and of its GPU."""
    unit = 1 if sys.platform == 'darwin' else 1024
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    gpu = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.
    return dict(
        peak_memory=max(host, about['peak_memory']),
        peak_gpu_memory=max(gpu, about['peak_gpu_memory']))


def format_utc() -> str:
    """Return the time, to the second."""
    return f'{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC'
