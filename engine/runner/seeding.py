"""Random numbers that only depend on the seed of a run, the process and the iteration.

A resumed training therefore continues exactly, without generator states in files. It does not
matter which worker draws a batch, or how many workers there are.

Processes share the initial weights and buffers, and the order of the images, which they split.
They differ in the random numbers of transforms and of the model, such as dropout, drop path and the
sampling of proposals. Equal numbers would drop the same units for all images of a step, so
``randomness.diff_rank_seed=False`` does not request them.
"""
from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.device import get_device
from mmengine.dist import get_rank
from torch.utils.data import DataLoader

from colonnade.common.errors import UserError

from ..upstream import get_indices_of_rank

DATA, MODEL, ORDER = range(3)  # purposes, each with a sequence of its own


@dataclass(frozen=True)
class Seed:
    """The seed of an iteration, in one process and for one purpose."""
    run: int
    rank: int
    iteration: int
    purpose: int

    def seed_generators(self) -> None:
        """Seed the generators of Python, NumPy and torch; for ``MODEL`` also those of GPUs."""
        words = np.random.SeedSequence((self.run, self.rank, self.iteration, self.purpose))
        state = words.generate_state(4)
        number = int.from_bytes(state.astype('<u4').tobytes(), 'little')
        random.seed(number)
        np.random.seed(state)
        if self.purpose == MODEL and get_device() != 'cpu':
            torch.manual_seed(number % 2**63)
        else:  # without GPUs, torch.manual_seed records a traceback for a later CUDA start
            torch.default_generator.manual_seed(number % 2**63)


@dataclass(frozen=True)
class SeededBatch:
    """Indices of samples; iterating over them, as torch's loaders do, seeds the generators."""
    indices: list[Any]
    seed: Seed

    def __iter__(self) -> Iterator[Any]:
        self.seed.seed_generators()
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class SeededBatches:
    """The batches of a batch sampler, each with its seed, from any iteration on."""

    def __init__(self, batches: Iterable[list[Any]], *, endless: bool) -> None:
        self.batches, self.endless = batches, endless
        self.source: Any = getattr(batches, 'sampler', None)
        self.seed = self.iteration = self.skipped = 0

    def start(self, seed: int, iteration: int, *, skip: int) -> None:
        """Set where the next pass, and only that one, starts."""
        self.seed, self.iteration, self.skipped = seed, iteration, skip

    def __iter__(self) -> Iterator[SeededBatch]:
        skipped, self.skipped = self.skipped, 0
        drawn = self._iter_epochs() if self.endless else self.batches
        batches = zip(self._iter_iterations(self.iteration - skipped), drawn, strict=False)
        for iteration, indices in islice(batches, skipped, None):
            yield SeededBatch(list(indices), Seed(self.seed, get_rank(), iteration, DATA))

    def _iter_iterations(self, iteration: int) -> Iterator[int]:
        """Yield iterations, after seeding global generators for third-party samplers."""
        has_own_generator = isinstance(self.source, (DefaultSampler, InfiniteSampler))
        for number in count(iteration):
            if not has_own_generator:
                Seed(self.seed, 0, number, ORDER).seed_generators()  # processes split one order
            yield number

    def _iter_epochs(self) -> Iterator[list[Any]]:
        """Yield the batches of all epochs."""
        for epoch in count():
            if hasattr(self.source, 'set_epoch'):
                self.source.set_epoch(epoch)
            indices = None
            for indices in self.batches:
                yield indices
            if indices is None:
                raise UserError('the training set has fewer images than a batch, and '
                                'train_dataloader.drop_last drops them all: set it to False')

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == 'batches' or name.startswith('__'):  # copies ask before they have attributes
            raise AttributeError(f'{type(self).__name__} has no attribute {name}')
        return getattr(self.batches, name)


def seed_batches(loader: DataLoader) -> SeededBatches | None:
    """Make a loader draw each batch from its own seed; return None if it has no batches."""
    if loader.batch_sampler is None:
        return None
    return _replace_batch_sampler(loader, SeededBatches(loader.batch_sampler, endless=False))


def build_endless_loader(loader: DataLoader) -> tuple[DataLoader, SeededBatches]:
    """Return a loader of the same samples that restarts after the last, and its seeded batches.

    Its sampler has a state of its own, because hooks may read the given loader meanwhile.
    """
    sampler = copy(loader.batch_sampler)
    for name, value in vars(sampler).items():
        if isinstance(value, list):  # such as the groups of AspectRatioBatchSampler
            vars(sampler)[name] = [
                each.copy() if isinstance(each, list) else each for each in value
            ]
    inner = getattr(sampler, 'sampler', None)
    if isinstance(inner, InfiniteSampler):
        sampler.sampler = copy(inner)
        sampler.sampler.indices = get_indices_of_rank(sampler.sampler)  # all passes share it
    endless = copy(loader)
    return endless, _replace_batch_sampler(endless, SeededBatches(sampler, endless=True))


def _replace_batch_sampler(loader: DataLoader, batches: SeededBatches) -> SeededBatches:
    object.__setattr__(loader, 'batch_sampler', batches)  # torch forbids a plain assignment
    return batches
