"""The estimate of a training as a table."""
from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import timedelta

from colonnade.models.half_precision import explain_missing_bfloat16
from colonnade.settings.backbone_config import get_backbone_class
from colonnade.settings.checks.widths import find_batch_problems

from .step_estimate import GIB, StepEstimate
from .training_estimate import TrainingEstimate, get_free_disk


def format_estimate(estimate: TrainingEstimate) -> Iterator[str]:
    """Yield lines of at most 80 columns."""
    yield from _format_schedule(estimate)
    yield from _format_memory(estimate)
    yield from _format_time(estimate)
    yield 'disk'
    yield _format_row('a checkpoint', _format_gib(estimate.checkpoint))
    yield _format_row('checkpoints at once', _format_gib(estimate.disk))
    yield _format_row(f'free in {estimate.cfg.work_dir}'[:29],
                      _format_gib(get_free_disk(estimate.cfg.work_dir)))  # yapf: disable
    if not estimate.fits_memory:
        yield 'to make it fit, pass one or more of these to --estimate again'
        yield from (f'  {change}' for change in suggest_changes(estimate.step))
        yield 'does not fit into memory'
    else:
        yield 'fits' if estimate.fits_disk else 'does not fit on the disk'


def suggest_changes(step: StepEstimate) -> Iterator[str]:
    """Yield options that lower the memory of a process, except those in use.

    The images per optimizer step stay the same.
    """
    setting = step.setting
    cfg, on_gpu = setting.cfg, setting.device == 'cuda'
    if setting.half is None and (on_gpu or not explain_missing_bfloat16()):
        yield '--amp'
    if get_backbone_class(cfg.model) and not cfg.model.backbone.get('with_cp'):
        yield '--cfg-options model.backbone.with_cp=True'
    for images in range(setting.images - 1, 0, -1):
        if setting.images % images:
            continue
        smaller = copy.deepcopy(cfg)
        smaller.train_dataloader.batch_size = images
        if not list(find_batch_problems(smaller, ('train_dataloader', ))):
            count = cfg.optim_wrapper.get('accumulative_counts', 1) * setting.images // images
            yield f'--total-batch-size {images * setting.processes} --grad-accum {count}'
            break
    if on_gpu and not setting.fsdp:
        yield '--fsdp --num-processes N'
    yield '--image-size HEIGHT WIDTH, and a train pipeline of smaller images'
    yield 'a smaller backbone'


def _format_row(name: str, value: str) -> str:
    return f'  {name:<30}{value}'


def _format_gib(size: float | None) -> str:
    return 'unknown' if size is None else f'{size / GIB:8.2f} GiB'


def _format_schedule(estimate: TrainingEstimate) -> Iterator[str]:
    schedule, setting = estimate.schedule, estimate.step.setting
    accumulated = estimate.cfg.optim_wrapper.get('accumulative_counts', 1)
    num_images = estimate.num_images
    yield 'schedule'
    yield _format_row('images in the data',
                      'unknown: not found here' if num_images is None else f'{num_images:8,}')
    unit = 'GPUs' if setting.device == 'cuda' else 'processes'
    yield _format_row('images per step', f'{schedule.images:8,} = {setting.processes} {unit} x '
                      f'{setting.images} x {accumulated} accumulated')  # yapf: disable
    for name, value in (('iterations', schedule.iterations), ('steps', schedule.steps)):
        yield _format_row(name, 'unknown, as the images' if value is None else f'{value:8,}')
    yield _format_row('epochs',
                      'unknown' if schedule.epochs is None else f'{schedule.epochs:8,.1f}')


def _format_memory(estimate: TrainingEstimate) -> Iterator[str]:
    step, memory = estimate.step, estimate.step.memory
    on_gpu = step.setting.device == 'cuda'
    height, width = step.size
    yield f'memory of a {"GPU" if on_gpu else "process"}, images of at most {height} x {width}'
    if estimate.options.image_size not in (None, step.size):
        yield '  to which the model pads --image-size'
    for name, value in (('weights', memory.weights), ('gradients', memory.gradients),
                        ('optimizer states', memory.states), ('EMA weights', memory.averaged),
                        ('between processes', memory.shared), ('activations', memory.activations),
                        ('CUDA' if on_gpu else 'libraries and freed blocks',
                         memory.outside), ('sum', memory.total)):
        if value:
            yield _format_row(name, _format_gib(value))
    yield _format_row('usable', _format_gib(estimate.options.usable_memory))
    if step.smaller_sizes:
        yield f'  activations are extrapolated from {step.smaller_sizes}'


def _format_time(estimate: TrainingEstimate) -> Iterator[str]:
    """Yield the time of the training, without waiting for data."""
    step = estimate.step
    if estimate.options.device != estimate.options.here:
        yield 'time: not measured, because that GPU is not present'
        return
    source = f'from {step.smaller_sizes}' if step.smaller_sizes else 'measured'
    yield f'time, images of {step.mean_pixels:,.0f} pixels on average ({source})'
    yield _format_row('an iteration', f'{step.seconds:8.2f} s')
    if estimate.schedule.iterations is not None:
        seconds = round(step.seconds * estimate.schedule.iterations)
        yield _format_row('training, without evaluations', f' {timedelta(seconds=seconds)}')
