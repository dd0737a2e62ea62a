"""mmengine's two loops of training, which go on from any iteration to the bit."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from mmengine.dist import get_rank
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from colonnade.settings.registries import find_class

from ..upstream import end_workers_of
from .seeding import MODEL, Seed, endless_loader, seed_batches

#: in the message hub, and so in checkpoints
LENGTH, SEEDS = 'iterations_per_epoch', 'seeds_of_iterations'


def seeded_loop(loop: BaseLoop | dict[str, Any]) -> BaseLoop | dict[str, Any]:
    """The loop of a config as one of ours, if it is one of mmengine's two; else as it is."""
    if not isinstance(loop, dict) or ('type' in loop) == ('by_epoch' in loop):
        return loop
    settings = dict(loop)
    if 'by_epoch' in settings:
        kind = EpochBasedTrainLoop if settings.pop('by_epoch') else IterBasedTrainLoop
    else:
        kind = find_class(settings['type'], LOOPS)
    ours = {EpochBasedTrainLoop: SeededEpochLoop, IterBasedTrainLoop: SeededIterationLoop}
    return {**settings, 'type': ours[kind]} if kind in ours else loop


class GuardedLoop(BaseLoop):
    """A loop of training whose iterations draw from seeds of their own, and may be guarded.

    Attributes:
        guard: Takes the step of a runner on a batch, or does not; None takes all.
    """
    guard: Callable[[Runner, Any, Callable[[], dict]], dict] | None = None
    _iter: int

    def take_step(self, index: int, data_batch: Sequence[dict]) -> None:
        """As an iteration of mmengine's; what the model draws differs between processes."""
        runner = self.runner
        Seed(runner.seed, get_rank(), self._iter, MODEL).seed_generators()
        runner.call_hook('before_train_iter', batch_idx=index, data_batch=data_batch)
        step = partial(runner.model.train_step, data_batch, optim_wrapper=runner.optim_wrapper)
        outputs = step() if self.guard is None else self.guard(runner, data_batch, step)
        runner.call_hook(
            'after_train_iter', batch_idx=index, data_batch=data_batch, outputs=outputs)
        self._iter += 1


class SeededIterationLoop(GuardedLoop, IterBasedTrainLoop):
    """mmengine's loop, in which each iteration draws from a seed of its own.

    Attributes:
        endless: The loader that training reads.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.endless, self.batches = endless_loader(self.dataloader)
        if self.batches is not None:
            self.dataloader_iterator = Batches(self.endless)

    def run(self) -> nn.Module:
        """As mmengine's; batches of iterations that are done are skipped, and not loaded."""
        if self.batches is not None:
            skip = 0 if self.fast_forward_on_resume else self._iter
            self.batches.start(self.runner.seed, self._iter, skip=skip)
        note_seeds(self.runner)
        return super().run()

    def run_iter(self, data_batch: Sequence[dict]) -> None:
        """As mmengine's, see :meth:`take_step`."""
        self.take_step(self._iter, data_batch)


class SeededEpochLoop(GuardedLoop, EpochBasedTrainLoop):
    """mmengine's loop, in which each iteration draws from a seed of its own.

    It also goes on in the middle of an epoch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches = seed_batches(self.dataloader)
        self.done = 0  # iterations of the epoch that training starts in

    def run(self) -> nn.Module:
        """As mmengine's."""
        hub, length = self.runner.message_hub, len(self.dataloader)
        if self.batches is not None and hub.get_info(LENGTH) == length:
            self.done = min(max(self._iter - self._epoch * length, 0), length)
        hub.update_info(LENGTH, length)
        note_seeds(self.runner)
        return super().run()

    def run_epoch(self) -> None:
        """As mmengine's; batches of iterations that are done are skipped, and not loaded."""
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
        """As mmengine's, see :meth:`take_step`."""
        self.take_step(idx, data_batch)


def note_seeds(runner: Runner) -> None:
    """Note in checkpoints how this training draws, and say so if it does not go on to the bit."""
    hub, reason = runner.message_hub, ''
    if hub.get_info(SEEDS) is None:
        reason = 'another program or an earlier version of colonnade made the checkpoint'
    elif names := sorted(set(remembering(runner.train_dataloader.dataset))):
        reason = f'{" and ".join(names)} of the data keep images, which are not in checkpoints'
    if runner.iter and reason:
        runner.logger.info('training goes on, but not to the bit as it would have without '
                           f'interruption: {reason}')
    hub.update_info(SEEDS, 1)


def remembering(dataset: Any) -> Iterator[str]:
    """The transforms of a data set whose results depend on images that they saw before."""
    for part in getattr(dataset, 'datasets', [getattr(dataset, 'dataset', None)]):
        if part is not None:
            yield from remembering(part)
    pipeline = getattr(dataset, 'pipeline', None) or ()
    for transform in getattr(pipeline, 'transforms', pipeline):
        if hasattr(transform, 'results_cache'):  # of mmdet's CachedMosaic and CachedMixUp
            yield type(transform).__name__


class Batches:
    """The batches of an endless loader, as mmengine's loop of iterations takes them.

    Args:
        loader: It starts its workers with the first batch.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.iterator: Iterator[Any] | None = None

    def skip_iter(self, number: int) -> None:
        """Nothing: the loader's batches know where they start."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return next(self.iterator)

    def end_workers(self) -> None:
        """Drop the batches that are not taken yet, and with them the workers that load them."""
        self.iterator = None
        end_workers_of(self.loader)


def end_workers(*loops: Any) -> None:
    """End the workers of loops that are done, which wait for another pass or load more batches.

    torch would wait five seconds for each that the garbage collector ends.

    Args:
        loops: Loops of a runner, or None.
    """
    for loop in loops:
        if isinstance(loop, BaseLoop) and isinstance(loop.dataloader, DataLoader):
            end_workers_of(loop.dataloader)
        if isinstance(loop, SeededIterationLoop) and loop.batches is not None:
            loop.dataloader_iterator.end_workers()
