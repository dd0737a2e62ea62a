"""mmengine's two training loops, which resume from any iteration bit for bit."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from mmengine.dist import get_rank
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from colonnade.settings.registries import find_class

from ..upstream import stop_workers
from .seeding import MODEL, Seed, SeededBatches, build_endless_loader, seed_batches

#: keys in the message hub, which checkpoints contain
LENGTH, SEEDS = 'iterations_per_epoch', 'seeds_of_iterations'


def use_seeded_loop(loop: BaseLoop | dict[str, Any]) -> BaseLoop | dict[str, Any]:
    """Return the config of a loop with a seeded type, if its type is one of mmengine's two."""
    if not isinstance(loop, dict) or ('type' in loop) == ('by_epoch' in loop):
        return loop
    settings = dict(loop)
    if 'by_epoch' in settings:
        loop_class = EpochBasedTrainLoop if settings.pop('by_epoch') else IterBasedTrainLoop
    else:
        loop_class = find_class(settings['type'], LOOPS)
    seeded = {EpochBasedTrainLoop: SeededEpochLoop, IterBasedTrainLoop: SeededIterationLoop}
    return {**settings, 'type': seeded[loop_class]} if loop_class in seeded else loop


@cache
def get_copier(device: torch.device) -> BaseDataPreprocessor:
    """Return a module whose ``cast_data`` copies a batch to a GPU, without waiting for the copy.

    A preprocessor that copies by itself waits for all work before, unless its ``non_blocking`` is
    set, which mmseg's cannot be. It does not copy what is on the device already.
    """
    return BaseDataPreprocessor(non_blocking=True).to(device)


class GuardedLoop(BaseLoop):
    """A training loop whose iterations have seeds of their own, and whose steps may be guarded."""
    guard: Callable[[Runner, Any, Callable[[], dict]], dict] | None = None
    _iter: int

    def take_step(self, index: int, data_batch: Sequence[dict]) -> None:
        """Run an iteration; random numbers of the model differ between processes."""
        runner = self.runner
        Seed(runner.seed, get_rank(), self._iter, MODEL).seed_generators()
        runner.call_hook('before_train_iter', batch_idx=index, data_batch=data_batch)
        step = partial(self._run_step, data_batch)
        outputs = step() if self.guard is None else self.guard(runner, data_batch, step)
        runner.call_hook(
            'after_train_iter', batch_idx=index, data_batch=data_batch, outputs=outputs)
        self._iter += 1

    def _run_step(self, data_batch: Any) -> dict[str, Any]:
        model, optim_wrapper = self.runner.model, self.runner.optim_wrapper
        device = next((parameter.device for parameter in model.parameters()), None)
        if device is None or device.type != 'cuda':
            return model.train_step(data_batch, optim_wrapper=optim_wrapper)
        # No name holds the copy, so that its memory is free once it is preprocessed.
        return model.train_step(
            get_copier(device).cast_data(data_batch), optim_wrapper=optim_wrapper)


class SeededIterationLoop(GuardedLoop, IterBasedTrainLoop):
    """mmengine's iteration-based loop with a seed for each iteration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.endless: DataLoader = self.dataloader
        self.batches: SeededBatches | None = None
        if self.dataloader.batch_sampler is not None:
            self.endless, self.batches = build_endless_loader(self.dataloader)
            self.dataloader_iterator = EndlessBatches(self.endless)

    def run(self) -> nn.Module:
        if self.batches is not None:
            skip = 0 if self.fast_forward_on_resume else self._iter
            self.batches.start(self.runner.seed, self._iter, skip=skip)
        record_seeds(self.runner)
        return super().run()

    def run_iter(self, data_batch: Sequence[dict]) -> None:
        self.take_step(self._iter, data_batch)


class SeededEpochLoop(GuardedLoop, EpochBasedTrainLoop):
    """mmengine's epoch-based loop with a seed for each iteration; it resumes within epochs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches = seed_batches(self.dataloader)
        self.done = 0  # iterations of the epoch that training starts in

    def run(self) -> nn.Module:
        hub, length = self.runner.message_hub, len(self.dataloader)
        if self.batches is not None and hub.get_info(LENGTH) == length:
            self.done = min(max(self._iter - self._epoch * length, 0), length)
        hub.update_info(LENGTH, length)
        record_seeds(self.runner)
        return super().run()

    def run_epoch(self) -> None:
        """Run an epoch; batches of iterations that are done are skipped without loading them."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        if self.batches is not None:
            self.batches.start(self.runner.seed, self._iter, skip=self.done)
        for index, data_batch in enumerate(self.dataloader, self.done):
            self.run_iter(index, data_batch)
        self.done = 0
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Sequence[dict]) -> None:
        self.take_step(idx, data_batch)


def record_seeds(runner: Runner) -> None:
    """Record in checkpoints that iterations are seeded; log why a resumed training may differ."""
    hub, reason = runner.message_hub, ''
    if hub.get_info(SEEDS) is None:
        reason = 'the checkpoint is from another program or an earlier version of colonnade'
    elif names := sorted(set(_find_caching_transforms(runner.train_dataloader.dataset))):
        reason = f'{" and ".join(names)} cache images, which are not in checkpoints'
    if runner.iter and reason:
        runner.logger.info('training resumes, but will not match an uninterrupted run bit for bit: '
                           f'{reason}')
    hub.update_info(SEEDS, 1)


def _find_caching_transforms(dataset: Any) -> Iterator[str]:
    """Yield the transforms of a dataset whose results depend on earlier images."""
    for inner in getattr(dataset, 'datasets', [getattr(dataset, 'dataset', None)]):
        if inner is not None:
            yield from _find_caching_transforms(inner)
    pipeline = getattr(dataset, 'pipeline', None) or ()
    for transform in getattr(pipeline, 'transforms', pipeline):
        if hasattr(transform, 'results_cache'):  # mmdet's CachedMosaic and CachedMixUp
            yield type(transform).__name__


class EndlessBatches:
    """An iterator over the batches of an endless loader, whose workers start with the first."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.iterator: Iterator[Any] | None = None

    def skip_iter(self, number: int) -> None:
        """Do nothing: the loader's batches know where they start."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return next(self.iterator)


def end_workers(*loops: Any) -> None:
    """End the data loader workers of finished loops.

    torch would wait five seconds for each worker that the garbage collector ends.
    """
    for loop in loops:
        if isinstance(loop, BaseLoop) and isinstance(loop.dataloader, DataLoader):
            stop_workers(loop.dataloader)
        if isinstance(loop, SeededIterationLoop) and loop.batches is not None:
            loop.dataloader_iterator.iterator = None
            stop_workers(loop.endless)
