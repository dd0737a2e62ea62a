"""What to change in a training that does not fit."""
from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

import torch
from mmengine.config import Config

from colonnade.models.half_precision import lacks_bfloat16
from colonnade.settings.backbone_config import trunk_of
from colonnade.settings.checks.widths import batch_problems

from .estimate import Estimate, Setting

PROCESSES = (2, 4, 8, 16)  # to share over
WORTH = 0.9  # of the memory, for sharing that alone is not enough
SMALLEST = 64  # pixels of a crop's shorter side
CALCULATED = 0.95  # of the memory is given to what is calculated and not measured


@dataclass(frozen=True)
class Change:
    """One change, with those before it."""
    text: str
    total: float  # bytes of a process
    fits: bool


def changes(estimate: Estimate, usable: float) -> Iterator[Change]:
    """Changes one upon the other, until the training fits.

    Args:
        estimate: Of the training as it was asked for.
        usable: Bytes that a process may take.
    """
    for text, setting in candidates(estimate.setting):
        estimate = estimate.changed(setting)
        yield (change := judged(text, estimate, usable))
        if change.fits:
            return
    calculated = CALCULATED * usable
    for text, smaller in scaled_down(estimate, calculated):
        yield (change := judged(text, smaller, calculated))
        if change.fits:
            return


def judged(text: str, estimate: Estimate, usable: float) -> Change:
    """A change, by the estimate that it leads to."""
    total = estimate.memory.total
    return Change(text, total, total <= usable)


def candidates(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Changes of what is computed, which are measured."""
    if setting.half is None and (setting.device == 'cuda' or not lacks_bfloat16()):
        half = torch.float16 if setting.device == 'cuda' else torch.bfloat16
        setting = replace(setting, half=half)
        yield '--amp', setting
    if trunk_of(setting.cfg.model) and not setting.cfg.model.backbone.get('with_cp'):
        cfg = copy.deepcopy(setting.cfg)
        cfg.model.backbone.with_cp = True
        yield 'model.backbone.with_cp=True', replace(setting, cfg=cfg)


def scaled_down(estimate: Estimate, usable: float) -> Iterator[tuple[str, Estimate]]:
    """Changes of how much is computed at once, which are calculated; a step keeps its images."""
    setting = estimate.setting
    wanted = (
        setting.images * setting.processes *
        setting.cfg.optim_wrapper.get('accumulative_counts', 1))
    if batch := smaller_batch(estimate, usable):
        estimate = estimate.with_images(batch)
        yield batch_options(estimate.setting, wanted), estimate
    if not estimate.setting.fsdp and estimate.setting.device == 'cuda':
        shares = [estimate.over(n) for n in PROCESSES if n >= estimate.setting.processes]
        fitting = [shared for shared in shares if shared.memory.total <= usable]
        shared = (fitting or shares or [estimate])[0 if fitting else -1]
        if fitting or shared.memory.total < WORTH * estimate.memory.total:
            estimate = shared
            options = batch_options(estimate.setting, wanted)
            yield f'--fsdp on {estimate.setting.processes} processes {options}', estimate
    size, memory = estimate.size, estimate.memory
    others = memory.total - memory.activations
    if memory.activations > 0 and usable > others:
        factor = sqrt((usable - others) / memory.activations)
        while (smaller := shorter(size, factor)) and min(smaller) >= SMALLEST:
            reduced = estimate.at(smaller)
            if reduced.memory.total <= usable:
                yield f'images of at most {smaller[0]} x {smaller[1]}', reduced
                return
            factor *= 0.9


def batch_options(setting: Setting, wanted: int) -> str:
    """What says how many images an iteration has, and how many iterations make a step.

    Args:
        setting: Of the training.
        wanted: Images of a step, exceeded where all processes take more at once.
    """
    total = setting.images * setting.processes
    return f'--total-batch {total} --accumulate {max(1, wanted // total)}'


def shorter(size: tuple[int, int], factor: float) -> tuple[int, int]:
    """A size of as many times the length, in multiples of 32 pixels, below the old one."""
    height, width = (int(side * min(factor, 0.95)) // 32 * 32 for side in size)
    return height, width


def smaller_batch(estimate: Estimate, usable: float) -> int | None:
    """The largest part of the batch that fits and that the model takes, or else the smallest."""
    images = estimate.setting.images
    possible = [n for n in range(1, images) if images % n == 0 and takes(estimate.setting.cfg, n)]
    fitting = [n for n in possible if estimate.with_images(n).memory.total <= usable]
    return max(fitting, default=min(possible, default=None))


def takes(cfg: Config, images: int) -> bool:
    """Whether the model of a config can be trained with so many images in a process."""
    cfg = copy.deepcopy(cfg)
    cfg.train_dataloader.batch_size = images
    return not list(batch_problems(cfg, ('train_dataloader', )))
