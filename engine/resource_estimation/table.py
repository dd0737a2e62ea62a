"""The plan of a training as a table."""
from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import timedelta

from mmengine.config import Config

from colonnade.models.half_precision import lacks_bfloat16
from colonnade.settings.backbone_config import backbone_of
from colonnade.settings.checks.widths import batch_problems

from .estimate import GIB, Estimate
from .plan import Plan, free_disk


def format_plan(plan: Plan) -> Iterator[str]:
    """Yield lines of at most 80 columns."""
    yield from schedule_rows(plan)
    yield from memory_rows(plan)
    yield from time_rows(plan)
    yield from disk_rows(plan)
    if not plan.fits_memory:
        yield 'to make it fit, pass one or more of these to --plan again'
        yield from (f'  {change}' for change in suggest_changes(plan.estimate))
        yield 'does not fit into memory'
    else:
        yield 'fits' if plan.fits_disk else 'does not fit on the disk'


def suggest_changes(estimate: Estimate) -> Iterator[str]:
    """Yield options that lower the memory of a process, but for those in use.

    A step of the optimizer keeps its images.
    """
    setting = estimate.setting
    cfg, on_gpu = setting.cfg, setting.device == 'cuda'
    if setting.half is None and (on_gpu or not lacks_bfloat16()):
        yield '--amp'
    if backbone_of(cfg.model) and not cfg.model.backbone.get('with_cp'):
        yield '--cfg-options model.backbone.with_cp=True'
    batches = [n for n in range(setting.images - 1, 0, -1) if setting.images % n == 0]
    if images := next((n for n in batches if accepts_batch(cfg, n)), None):
        accumulated = cfg.optim_wrapper.get('accumulative_counts', 1) * setting.images // images
        yield f'--total-batch {images * setting.processes} --accumulate {accumulated}'
    if on_gpu and not setting.fsdp:
        yield '--fsdp --processes N'
    yield '--plan-size HEIGHT WIDTH, and a train pipeline of smaller images'
    yield 'a smaller backbone'


def accepts_batch(cfg: Config, images: int) -> bool:
    """Return True if the model of a config can be trained with this many images in a process."""
    cfg = copy.deepcopy(cfg)
    cfg.train_dataloader.batch_size = images
    return not list(batch_problems(cfg, ('train_dataloader', )))


def row(name: str, value: str) -> str:
    """Return a line of the table."""
    return f'  {name:<30}{value}'


def gib(size: float | None) -> str:
    """Return a number of bytes as text."""
    return 'unknown' if size is None else f'{size / GIB:8.2f} GiB'


def schedule_rows(plan: Plan) -> Iterator[str]:
    """Yield images, steps and epochs."""
    schedule, setting = plan.schedule, plan.estimate.setting
    accumulated = plan.cfg.optim_wrapper.get('accumulative_counts', 1)
    yield 'schedule'
    yield row('images in the data',
              'unknown: not found here' if plan.num_images is None else f'{plan.num_images:8,}')
    kind = 'GPUs' if setting.device == 'cuda' else 'processes'
    yield row('images a step', f'{schedule.images:8,} = {setting.processes} {kind} x '
              f'{setting.images} x {accumulated} accumulated')  # yapf: disable
    for name, value in (('iterations', schedule.iterations), ('steps', schedule.steps)):
        yield row(name, 'unknown, as the number of images' if value is None else f'{value:8,}')
    yield row('epochs', 'unknown' if schedule.epochs is None else f'{schedule.epochs:8,.1f}')


def memory_rows(plan: Plan) -> Iterator[str]:
    """Yield the parts of the memory of one process."""
    result, memory = plan.estimate, plan.estimate.memory
    on_gpu = result.setting.device == 'cuda'
    height, width = result.size
    yield f'memory of a {"GPU" if on_gpu else "process"}, images of at most {height} x {width}'
    if plan.options.size not in (None, result.size):
        yield '  to which the model pads --plan-size'
    for name, value in (('weights', memory.weights), ('gradients', memory.gradients),
                        ('optimizer states', memory.states), ('averaged weights', memory.averaged),
                        ('between processes', memory.shared), ('activations', memory.activations),
                        ('CUDA' if on_gpu else 'libraries and freed blocks',
                         memory.outside), ('sum', memory.total)):
        if value:
            yield row(name, gib(value))
    yield row('usable', gib(plan.options.usable_memory))
    if result.smaller_sizes:
        yield f'  activations are extrapolated from {result.smaller_sizes}'


def time_rows(plan: Plan) -> Iterator[str]:
    """Yield the time of the training, without waiting for data."""
    result = plan.estimate
    if plan.options.device != plan.options.here:
        yield 'time: not measured, because that GPU is not here'
        return
    source = f'from {result.smaller_sizes}' if result.smaller_sizes else 'measured'
    yield f'time, images of {result.mean_pixels:,.0f} pixels in the mean ({source})'
    yield row('an iteration', f'{result.seconds:8.2f} s')
    if plan.schedule.iterations is not None:
        seconds = round(result.seconds * plan.schedule.iterations)
        yield row('training, without evaluations', f' {timedelta(seconds=seconds)}')


def disk_rows(plan: Plan) -> Iterator[str]:
    """Yield the sizes of checkpoints."""
    yield 'disk'
    yield row('a checkpoint', gib(plan.checkpoint))
    yield row('checkpoints at once', gib(plan.disk))
    yield row(f'free in {plan.cfg.work_dir}'[:29], gib(free_disk(plan.cfg.work_dir)))
