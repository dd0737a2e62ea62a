"""Seconds and peak memory of whole detectors and segmenters on one image."""
from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from colonnade.common.errors import UserError
from colonnade.models.building import build_random_model
from colonnade.models.complexity import build_blank_sample, get_default_size
from colonnade.settings.reading import read_config

from .measurement import MIB, in_fresh_process, middle_and_spread, peak_while


@dataclass(frozen=True)
class Cost:
    """Of one image that is tested."""
    seconds: float  # median
    spread: float  # half the range
    memory: float  # peak MiB above the weights

    def __str__(self) -> str:
        return f'{self.seconds:8.3f} ±{self.spread:6.3f} s {self.memory:6.0f} MiB'


def cost_of(config: Path,
            size: tuple[int, int] | None = None,
            *,
            rounds: int = 3,
            threads: int = 0) -> Cost:
    """What a config's model costs with random weights, on the CPU, in a fresh process.

    Such a detector finds nothing, or as many objects as it may: Mask R-CNN's mask head has nothing
    to do, and heads with queries draw a mask for each.

    Args:
        config: Of a detector or segmenter.
        size: Height and width of the image; ``None`` is 800 x 1280 for detectors, else 512².
        rounds: Runs that are timed, behind one that warms up and whose memory is measured.
        threads: Of the CPU; 0 is torch's choice.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no config of a detector or segmenter, or ``rounds`` is not positive.
    """
    if rounds < 1:
        raise UserError(f'rounds must be at least 1, got {rounds}')
    size = size or get_default_size(read_config(config))
    return in_fresh_process(cost_here, config, size, rounds, threads)


def cost_here(config: Path, size: tuple[int, int], rounds: int, threads: int) -> Cost:
    """As :func:`cost_of`, in this process."""
    if threads:
        torch.set_num_threads(threads)
    model = model_of(config)
    image = torch.randn(1, 3, *size)
    seconds: list[float] = []

    def predict() -> None:
        started = time.perf_counter()
        with torch.no_grad():
            model(image, [build_blank_sample(*size)], mode='predict')
        seconds.append(time.perf_counter() - started)

    memory = peak_while(predict)
    for _ in range(rounds):
        predict()
    return Cost(*middle_and_spread(seconds[1:]), memory / MIB)


def model_of(config: Path) -> nn.Module:
    """The model of a config with random weights, which are the same each time, for evaluation.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no config of a detector or segmenter.
    """
    torch.manual_seed(0)
    return build_random_model(read_config(config).model).eval()
