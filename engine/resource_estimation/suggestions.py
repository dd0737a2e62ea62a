"""Changes that make a training fit into memory."""
from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from mmengine.config import Config

from colonnade.models.half_precision import lacks_bfloat16
from colonnade.settings.backbone_config import trunk_of
from colonnade.settings.checks.widths import batch_problems

from .estimate import Estimate, estimate
from .trial import Setting

NUM_PROCESSES = (2, 4, 8, 16)  # to shard over
MIN_SIDE = 64  # pixels
WORTH = 0.9  # fraction of the memory that sharding must get below
CALCULATED = 0.95  # fraction of the memory for what is calculated and not measured


@dataclass(frozen=True)
class Change:
    """One change, on top of those before it."""
    text: str
    total: float  # bytes of a process
    fits: bool


def suggest_changes(before: Estimate, usable: float) -> Iterator[Change]:
    """Yield changes, each on top of those before it, until the training fits.

    Args:
        before: Of the training as it was asked for.
        usable: Bytes that a process may take.
    """
    latest = before
    for text, setting in cheaper_settings(before.setting):
        latest = estimate(setting, before.size, before.mean_pixels, before.imports, num_timed=0)
        total = latest.memory.total
        yield Change(text, total, total <= usable)
        if total <= usable:
            return
    usable *= CALCULATED
    for text, smaller in scale_down(latest, usable):
        total = smaller.memory.total
        yield Change(text, total, total <= usable)
        if total <= usable:
            return


def cheaper_settings(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Yield changes of what is computed, whose effect is measured."""
    if setting.half is None and (setting.device == 'cuda' or not lacks_bfloat16()):
        half = torch.float16 if setting.device == 'cuda' else torch.bfloat16
        setting = replace(setting, half=half)
        yield '--amp', setting
    if trunk_of(setting.cfg.model) and not setting.cfg.model.backbone.get('with_cp'):
        cfg = copy.deepcopy(setting.cfg)
        cfg.model.backbone.with_cp = True
        yield 'model.backbone.with_cp=True', replace(setting, cfg=cfg)


def scale_down(latest: Estimate, usable: float) -> Iterator[tuple[str, Estimate]]:
    """Yield changes of how much is computed at once, whose effect is calculated.

    A step of the optimizer keeps its images, if not all processes take more at once.
    """
    setting = latest.setting
    accumulated = setting.cfg.optim_wrapper.get('accumulative_counts', 1)
    step_images = setting.images * setting.processes * accumulated

    def changed(**changes: Any) -> Estimate:
        return replace(latest, setting=replace(latest.setting, **changes))

    def batch_options(setting: Setting) -> str:
        total = setting.images * setting.processes
        return f'--total-batch {total} --accumulate {max(1, step_images // total)}'

    batches = [
        changed(images=n) for n in range(setting.images - 1, 0, -1)
        if setting.images % n == 0 and accepts_batch(setting.cfg, n)
    ]
    if batches:
        latest = first_fitting(batches, usable)
        yield batch_options(latest.setting), latest
    if not setting.fsdp and setting.device == 'cuda':
        counts = [n for n in NUM_PROCESSES if n >= setting.processes] or [setting.processes]
        sharded = first_fitting([changed(processes=n, fsdp=True) for n in counts], usable)
        if sharded.memory.total < WORTH * latest.memory.total:
            latest = sharded
            options = batch_options(latest.setting)
            yield f'--fsdp on {latest.setting.processes} processes {options}', latest
    memory = latest.memory
    room = usable - (memory.total - memory.activations)
    if room > 0:
        factor = min(0.95, sqrt(room / max(memory.activations, 1)))
        height, width = (int(side * factor) // 32 * 32 for side in latest.size)
        if min(height, width) >= MIN_SIDE:
            yield f'images of at most {height} x {width}', replace(latest, size=(height, width))


def first_fitting(estimates: list[Estimate], usable: float) -> Estimate:
    """Return the first estimate that fits, or the last."""
    return next((each for each in estimates if each.memory.total <= usable), estimates[-1])


def accepts_batch(cfg: Config, images: int) -> bool:
    """Return True if the model of a config can be trained with this many images in a process."""
    cfg = copy.deepcopy(cfg)
    cfg.train_dataloader.batch_size = images
    return not list(batch_problems(cfg, ('train_dataloader', )))
