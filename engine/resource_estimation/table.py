"""The plan of a training as a table."""
from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from .estimate import GIB
from .plan import Plan, free_disk


def format_plan(plan: Plan) -> Iterator[str]:
    """Yield lines of at most 80 columns."""
    yield from schedule_rows(plan)
    yield from memory_rows(plan)
    yield from time_rows(plan)
    yield from disk_rows(plan)
    if plan.changes:
        yield 'to make it fit, each with those above it (per process)'
        for change in plan.changes:
            yield f'  {change.text:<54}{gib(change.total)}{"  fits" if change.fits else ""}'
        if not plan.changes[-1].fits:
            yield '  nothing of this is enough: take a smaller trunk or a larger machine'
    if not plan.fits_memory:
        yield 'does not fit into memory'
    else:
        yield 'fits' if plan.fits_disk else 'does not fit on the disk'


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
