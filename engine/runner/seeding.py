"""Randomness that follows from the seed, the process and the iteration, and from nothing before.

So a training goes on as if it had not been interrupted, without states of generators in files. It
does not matter which worker draws a batch, or how many workers there are.

Processes have in common the initial values and buffers of the model, and the order of the images,
which they share out. They differ in what transforms draw for an image, and in what the model draws
in an iteration, such as dropout, drop path and the choice of proposals. Equal draws would drop the
same units for all images of a step, so ``randomness.diff_rank_seed=False`` does not ask for them.
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

DATA, MODEL, ORDER = range(3)  # what draws: each has generators of its own


@dataclass(frozen=True)
class Seed:
    """The seed of an iteration.

    Attributes:
        run: Of the whole training.
        rank: Of the process.
        iteration: Counted from the start of the training.
        purpose: ``DATA``, ``MODEL`` or ``ORDER``.
    """
    run: int
    rank: int
    iteration: int
    purpose: int

    def seed_generators(self) -> None:
        """Seed the generators of Python, NumPy and torch; for ``MODEL`` also the GPU's."""
        words = np.random.SeedSequence((self.run, self.rank, self.iteration, self.purpose))
        state = words.generate_state(4)
        number = int.from_bytes(state.astype('<u4').tobytes(), 'little')
        random.seed(number)
        np.random.seed(state)
        if self.purpose == MODEL and get_device() != 'cpu':
            torch.manual_seed(number % 2**63)
        else:  # the other would note for GPUs, with a traceback, what to do if there were any
            torch.default_generator.manual_seed(number % 2**63)


@dataclass(frozen=True)
class SeededBatch:
    """Indices of samples; whoever goes through them draws these samples from their own seed.

    torch's loaders do, in a worker or in the main process.
    """
    indices: list[Any]
    seed: Seed

    def __iter__(self) -> Iterator[Any]:
        self.seed.seed_generators()
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class SeededBatches:
    """The batches of a batch sampler, each with its seed, from any iteration on.

    Args:
        batches: Indices of samples, batch by batch.
        endless: Begin again after the last batch, with the sampler's next epoch.
    """

    def __init__(self, batches: Iterable[list[Any]], *, endless: bool) -> None:
        self.batches, self.endless = batches, endless
        self.source: Any = getattr(batches, 'sampler', None)
        self.seed = self.iteration = self.skipped = 0

    def start(self, seed: int, iteration: int, *, skip: int) -> None:
        """Say where the next pass starts, and that alone; nothing is loaded of what is skipped.

        Args:
            seed: Of the training.
            iteration: The first.
            skip: So many batches of the pass are left out.
        """
        self.seed, self.iteration, self.skipped = seed, iteration, skip

    def __iter__(self) -> Iterator[SeededBatch]:
        skipped, self.skipped = self.skipped, 0
        drawn = self.through_epochs() if self.endless else self.batches
        batches = zip(self.iter_seeded(self.iteration - skipped), drawn, strict=False)
        for iteration, indices in islice(batches, skipped, None):
            yield SeededBatch(list(indices), Seed(self.seed, get_rank(), iteration, DATA))

    def iter_seeded(self, iteration: int) -> Iterator[int]:
        """Numbers of iterations; before each one's batch is drawn, its seed is iter_seeded."""
        draws_alone = isinstance(self.source, (DefaultSampler, InfiniteSampler))
        for number in count(iteration):
            if not draws_alone:
                Seed(self.seed, 0, number, ORDER).seed_generators()  # processes share out one order
            yield number

    def through_epochs(self) -> Iterator[list[Any]]:
        """The batches of all epochs.

        Raises:
            ValueError: If an epoch has none.
        """
        for epoch in count():
            if hasattr(self.source, 'set_epoch'):
                self.source.set_epoch(epoch)
            indices = None
            for indices in self.batches:
                yield indices
            if indices is None:
                raise UserError('the training set has fewer images than a batch, and '
                                'train_dataloader.drop_last leaves none')

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == 'batches' or name.startswith('__'):  # of a copy that has nothing yet
            raise AttributeError(f'{type(self).__name__} has no attribute {name}')
        return getattr(self.batches, name)


def seed_batches(loader: DataLoader) -> SeededBatches | None:
    """Let a loader draw each batch from its own seed; None if the loader has no batches.

    Args:
        loader: Changed in place.
    """
    if loader.batch_sampler is None:
        return None
    return replace_batches(loader, SeededBatches(loader.batch_sampler, endless=False))


def endless_loader(loader: DataLoader) -> tuple[DataLoader, SeededBatches | None]:
    """A loader of the same samples that begins again after the last, and its seeded batches.

    Hooks may read the loader itself meanwhile. One that has no batches is returned as it is.
    """
    if loader.batch_sampler is None:
        return loader, None
    endless = copy(loader)
    return endless, replace_batches(
        endless, SeededBatches(with_own_state(loader.batch_sampler), endless=True))


def replace_batches(loader: DataLoader, batches: SeededBatches) -> SeededBatches:
    """Give a loader other batches, and return them."""
    object.__setattr__(loader, 'batch_sampler', batches)  # torch forbids it after its checks
    return batches


def with_own_state(batches: Any) -> Any:
    """A batch sampler that a pass through another one of the same samples does not change."""
    own = copy(batches)
    for name, value in getattr(own, '__dict__', {}).items():
        if isinstance(value, list):  # such as AspectRatioBatchSampler's, by height and width
            vars(own)[name] = [each.copy() if isinstance(each, list) else each for each in value]
    if isinstance(sampler := getattr(own, 'sampler', None), InfiniteSampler):
        own.sampler = copy(sampler)
        own.sampler.indices = get_indices_of_rank(own.sampler)  # all passes draw from the same
    return own
