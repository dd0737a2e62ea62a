"""The plan of a training: memory, steps, time and disk, as a table."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from mmengine.config import Config

from ..training import TrainOptions
from .data_counts import USUAL_OBJECTS, DataCounts, data_counts
from .estimate import Estimate, Setting, estimate, mean_size, peak_of_imports
from .image_sizes import ImageSizes, Size, image_sizes
from .measured_steps import padded
from .memory import gib, row, usable_memory
from .planned_config import PlanOptions, as_if_started, planned_config, planned_half
from .suggestions import Change, changes
from .training_length import Schedule, checkpoints, free_room, keeps_best


@dataclass(frozen=True)
class Plan:
    """What a training takes.

    Attributes:
        cfg: With its batch settled.
        options: What is planned for.
        counts: Of its data.
        schedule: Of its steps.
        estimate: Of its memory and time.
        usable: Bytes that a process may take.
        advice: What to change if it does not fit.
    """
    cfg: Config
    options: PlanOptions
    counts: DataCounts
    schedule: Schedule
    estimate: Estimate
    usable: float
    advice: tuple[Change, ...]

    @property
    def fits_memory(self) -> bool:
        """Whether a process finds its memory."""
        return self.estimate.memory.total <= self.usable

    @property
    def disk(self) -> float | None:
        """Bytes of all checkpoints that are there at once; None if that is not known."""
        count = checkpoints(self.cfg, self.schedule)
        if count is None:
            return None
        best = self.estimate.alone.weights + self.estimate.alone.averaged
        return count * self.checkpoint + keeps_best(self.cfg) * best

    @property
    def checkpoint(self) -> float:
        """Bytes of one that training goes on from."""
        alone = self.estimate.alone
        return alone.weights + alone.states + alone.averaged

    @property
    def fits_disk(self) -> bool:
        """Whether checkpoints find their room, as far as it is known."""
        free = free_room(self.cfg.work_dir)
        return self.disk is None or free is None or self.disk <= free

    @property
    def fits(self) -> bool:
        """Whether the training can be started."""
        return self.fits_memory and self.fits_disk


def plan_training(train: TrainOptions, options: PlanOptions) -> Plan:
    """Plan a training from its config, before data or weights are loaded.

    Args:
        train: As for the training.
        options: What it is planned for.

    Raises:
        OSError: If a file is missing.
        ValueError: If config and options do not fit each other, or sizes do not follow from them.
    """
    cfg = planned_config(train, options)
    imports = peak_of_imports(cfg.default_scope)
    counts = data_counts(cfg)
    with as_if_started(cfg, options.processes):
        schedule = Schedule.of(cfg, counts.images)
    largest, mean = sizes_of(cfg, counts, options.size)
    setting = Setting(
        cfg=cfg,
        device=options.device,
        here=options.here,
        half=planned_half(cfg, train, options),
        images=cfg.train_dataloader.batch_size,
        objects=round(counts.objects or USUAL_OBJECTS),
        processes=options.processes,
        fsdp=train.fsdp)
    found = estimate(setting, largest, mean, imports)
    usable = usable_memory(options.device, options.given_bytes)
    if options.device == 'cpu':  # all processes are on this machine
        usable /= options.processes
    advice = () if found.memory.total <= usable else tuple(changes(found, usable))
    return Plan(cfg, options, counts, schedule, found, usable, advice)


def sizes_of(cfg: Config, counts: DataCounts, given: Size | None) -> tuple[Size, Size]:
    """The largest images as the model sees them, and those of the mean."""
    if given is not None:
        return padded(cfg, given), padded(cfg, given)
    sizes: ImageSizes = image_sizes(cfg, counts.sizes)
    largest = padded(cfg, sizes.largest)
    if cfg.model.get('data_preprocessor', {}).get('size'):
        return largest, largest
    return largest, mean_size(largest, sizes.mean_pixels)


def table(plan: Plan) -> Iterator[str]:
    """Lines of at most 80 columns."""
    yield from schedule_rows(plan)
    yield from memory_rows(plan)
    yield from time_rows(plan)
    yield from disk_rows(plan)
    if plan.advice:
        yield 'to make it fit, each with those above it (per process)'
        for change in plan.advice:
            yield f'  {change.text:<54}{gib(change.total)}{"  fits" if change.fits else ""}'
        if not plan.advice[-1].fits:
            yield '  nothing of this is enough: take a smaller trunk or a larger machine'
    yield verdict(plan)


def schedule_rows(plan: Plan) -> Iterator[str]:
    """Images, steps and epochs."""
    schedule, setting = plan.schedule, plan.estimate.setting
    accumulated = plan.cfg.optim_wrapper.get('accumulative_counts', 1)
    yield 'schedule'
    yield row('images in the data', 'unknown: not found here' if plan.counts.images is None else
              f'{plan.counts.images:8,}')  # yapf: disable
    kind = 'GPUs' if plan.options.device == 'cuda' else 'processes'
    yield row('images a step', f'{schedule.images:8,} = {setting.processes} {kind} x '
              f'{setting.images} x {accumulated} accumulated')  # yapf: disable
    for name, value in (('iterations', schedule.iterations), ('steps', schedule.steps)):
        yield row(name, 'unknown, as the number of images' if value is None else f'{value:8,}')
    yield row('epochs', 'unknown' if schedule.epochs is None else f'{schedule.epochs:8,.1f}')


def memory_rows(plan: Plan) -> Iterator[str]:
    """Of one process."""
    found = plan.estimate
    kind = 'GPU' if plan.options.device == 'cuda' else 'process'
    height, width = found.size
    yield f'memory of a {kind}, images of at most {height} x {width}'
    if plan.options.size not in (None, found.size):
        yield '  to which the model pads --plan-size'
    yield from found.memory.lines('CUDA' if kind == 'GPU' else 'libraries and freed blocks')
    yield row('usable', gib(plan.usable))
    if found.steps.measured[-1].size != found.size:
        sizes = ' and '.join(f'{m.size[0]} x {m.size[1]}' for m in found.steps.measured)
        yield f'  activations are extrapolated from {sizes}'


def time_rows(plan: Plan) -> Iterator[str]:
    """Of the whole training, without what loading data takes beyond it."""
    found = plan.estimate
    if plan.options.device != plan.options.here:
        yield 'time: not measured, because that GPU is not here'
        return
    height, width = found.mean
    yield f'time, images of {height} x {width} in the mean ({found.steps.source(found.mean)})'
    yield row('an iteration', f'{found.seconds:8.2f} s')
    if plan.schedule.iterations is not None:
        whole = timedelta(seconds=round(found.seconds * plan.schedule.iterations))
        yield row('training, without evaluations', f' {whole}')


def disk_rows(plan: Plan) -> Iterator[str]:
    """Checkpoints."""
    yield 'disk'
    yield row('a checkpoint', gib(plan.checkpoint))
    yield row('checkpoints at once', 'unknown' if plan.disk is None else gib(plan.disk))
    free = free_room(plan.cfg.work_dir)
    yield row(f'free in {plan.cfg.work_dir}'[:29], 'unknown' if free is None else gib(free))


def verdict(plan: Plan) -> str:
    """Whether the training can be started."""
    if not plan.fits_memory:
        return 'does not fit into memory'
    return 'fits' if plan.fits_disk else 'does not fit on the disk'
