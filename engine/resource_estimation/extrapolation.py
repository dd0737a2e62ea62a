"""From steps at sizes that can be afforded to what a step takes at another size."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from mmengine.config import Config
from torch import nn

from colonnade.common.errors import UserCodeError
from colonnade.models.complexity import count_part
from colonnade.models.meta_device import build_without_memory

from .image_sizes import Size
from .measured_steps import Measured, Trial

SIDES = (3 / 8, 1 / 2, 3 / 4)  # of the largest image, where it cannot be afforded itself
SMALL = 2**19  # pixels of a batch that any machine can afford
BUDGET = 60.  # seconds of the steps at one size


@dataclass(frozen=True)
class Extrapolation:
    """Of what was measured at two sizes, or at one.

    Memory is a straight line in pixels: trunks hold so many bytes per token, heads and samples of
    regions a number of their own. Time is a straight line in products of trunk and pyramid, which
    may grow with the square of the number of tokens.

    Attributes:
        measured: In the order of their pixels.
        products: Multiply-adds at the same sizes, and at the sizes that are asked for.
    """
    measured: tuple[Measured, ...]
    products: dict[Size, float]

    def memory(self, size: Size) -> int:
        """Bytes of a step at a size."""
        points = [(float(prod(m.size)), float(m.memory)) for m in self.measured]
        return int(on_line(points, prod(size)))

    def seconds(self, size: Size) -> float:
        """Of an iteration at a size."""
        points = [(self.products[m.size], m.seconds) for m in self.measured]
        return on_line(points, self.products[size])

    def source(self, size: Size) -> str:
        """Where numbers at a size come from."""
        if self.measured[-1].size == size:
            return 'measured'
        sizes = ' and '.join(f'{m.size[0]} x {m.size[1]}' for m in self.measured)
        return f'from {sizes} by products'


def on_line(points: list[tuple[float, float]], place: float) -> float:
    """The value at a place of the line through the last two points, or from zero through one.

    A line that falls, of measurements that were disturbed, is taken to go through zero.
    """
    (right, high), (left, low) = points[-1], points[0]
    if left == right or low >= high:
        return high * place / right
    return high + (high - low) / (right - left) * (place - right)


def products_at(cfg: Config, sizes: set[Size]) -> dict[Size, float]:
    """Multiply-adds of trunk and pyramid at some sizes, or pixels if they cannot be counted."""
    model = build_without_memory(cfg.model).eval().requires_grad_(False)
    try:
        return {size: float(work_of(model, size)) for size in sizes}
    except (ValueError, AttributeError):  # of models with a trunk that is not ours
        return {size: float(prod(size)) for size in sizes}


def work_of(model: nn.Module, size: Size) -> int:
    """Multiply-adds of trunk and neck on an image without memory."""
    work, maps = count_part('backbone', model.backbone, torch.empty(1, 3, *size, device='meta'))
    if getattr(model, 'neck', None) is not None:
        work += count_part('neck', model.neck, maps)[0]
    return work


def scaled(size: Size, factor: float) -> Size:
    """A size with sides that are so many times as long, in multiples of 32 pixels if they were."""
    step = 32 if all(side % 32 == 0 for side in size) else 1
    height, width = (max(step, round(side * factor / step) * step) for side in size)
    return height, width


def measure_sizes(trial: Trial, size: Size, room: float, timed: int) -> tuple[Measured, ...]:
    """Steps at the size that is asked for and at a smaller one, or at two smaller ones.

    Args:
        trial: What takes steps.
        size: Of the images.
        room: Bytes that tensors may take here.
        timed: Steps whose time counts.

    Raises:
        ValueError: If no step can be taken.
    """
    first = measure_smallest(trial, size, timed)
    steps = trial.iterations * (timed + 2 if timed else 1)
    larger = [
        second for factor in (*SIDES, 1.)
        if prod(second := scaled(size, factor)) > prod(first.size) and first.memory * prod(second) /
        prod(first.size) < room
    ]
    if not larger:
        return (first, )
    seconds = first.seconds * steps / prod(first.size)
    affordable = [second for second in larger if seconds * prod(second) < BUDGET]
    return first, trial.measure(affordable[-1] if affordable else larger[0], timed=timed)


def measure_smallest(trial: Trial, size: Size, timed: int) -> Measured:
    """At the smallest size that the model takes: heads with queries need as many pixels."""
    small = trial.images * prod(size) <= SMALL
    for factor in (1., ) if small else (*SIDES, 1.):
        try:
            return trial.measure(scaled(size, factor), timed=timed)
        except (RuntimeError, IndexError, ValueError, AssertionError) as error:
            fault = error
    raise UserCodeError(f'the model cannot take a step on random images: {type(fault).__name__}: '
                        f'{fault}') from fault
