"""The estimate of a training as a table."""
from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import timedelta

from colonnade.common.name_lists import format_count
from colonnade.models.half_precision import explain_missing_bfloat16
from colonnade.settings.backbone_config import get_backbone_class
from colonnade.settings.checks.widths import find_batch_problems

from .estimate import GIB, TrainingEstimate, get_free_disk


def format_estimate(estimate: TrainingEstimate) -> Iterator[str]:
    """Yield lines of at most 80 columns."""
    setting, accumulated = estimate.setting, estimate.accumulated
    on_gpu, work_dir = setting.device == 'cuda', setting.cfg.work_dir
    iterations, epochs = estimate.length
    num_images = estimate.num_images
    yield 'schedule'
    yield _format_row('images in the data',
                      'unknown: not found here' if num_images is None else f'{num_images:8,}')
    count = format_count(setting.processes, 'GPU' if on_gpu else 'process')
    yield _format_row('images per step',
                      f'{setting.processes * setting.images * accumulated:8,} = {count} x '
                      f'{setting.images} x {accumulated} accumulated')  # yapf: disable
    steps = None if iterations is None else -(-iterations // accumulated)
    for name, value in (('iterations', iterations), ('steps', steps)):
        yield _format_row(name, 'unknown, as the images' if value is None else f'{value:8,}')
    yield _format_row('epochs', 'unknown' if epochs is None else f'{epochs:8,.1f}')

    height, width = estimate.size
    yield f'memory of a {"GPU" if on_gpu else "process"}, images of at most {height} x {width}'
    memory = estimate.memory
    for name, size in (*memory.items(), ('sum', sum(memory.values()))):
        if size:
            yield _format_row(name, _format_gib(size))
    yield _format_row('usable', _format_gib(estimate.usable))
    smaller = ''
    if estimate.steps[-1].size != estimate.size:
        smaller = ' and '.join(f'{m.size[0]} x {m.size[1]}' for m in estimate.steps)
        yield f'  activations are extrapolated from {smaller}'

    if setting.device != setting.here:
        yield 'time: not measured, because that GPU is not present'
    else:
        source = f'from {smaller}' if smaller else 'measured'
        yield f'time, images of {estimate.mean_pixels:,.0f} pixels on average ({source})'
        yield _format_row('an iteration', f'{estimate.seconds:8.2f} s')
        if iterations is not None:
            total = timedelta(seconds=round(estimate.seconds * iterations))
            yield _format_row('training, without evaluations', f' {total}')

    yield 'disk'
    yield _format_row('a checkpoint', _format_gib(estimate.checkpoint))
    yield _format_row('checkpoints at once', _format_gib(estimate.disk))
    yield _format_row(f'free in {work_dir}'[:29], _format_gib(get_free_disk(work_dir)))
    if not estimate.fits_memory:
        yield 'to make it fit, pass one or more of these to --estimate again'
        yield from (f'  {change}' for change in suggest_changes(estimate))
        yield 'does not fit into memory'
    else:
        yield 'fits' if estimate.fits_disk else 'does not fit on the disk'


def suggest_changes(estimate: TrainingEstimate) -> Iterator[str]:
    """Yield options that lower the memory of a process, except those in use.

    The images per optimizer step stay the same.
    """
    setting = estimate.setting
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
            count = estimate.accumulated * setting.images // images
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
