"""A loss that explodes without being infinite."""
from __future__ import annotations

from collections import deque
from math import inf, isfinite
from statistics import median
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from .finite import number
from .good_checkpoints import ADVICE, GoodCheckpoint

WINDOW = 20  # losses whose median is the level
LEAST = 5  # of them, for a level
FACTOR = 10.  # of the lowest level
SHARE_OF_FIRST = 0.1  # below it, a loss is small whatever it was
FACTOR_OF_FIRST = 100.  # of the first loss, which no step has touched


class LossLevel:
    """The level of a loss, which is the median of the last 20, and the lowest level so far.

    A median ignores single batches. The loss has exploded if the level is ten times the lowest and
    a tenth of the first loss, or if it is a hundred times the first loss.

    Attributes:
        level: At present.
        lowest: Of all levels of at least five losses.
        first: The first loss.
    """

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.level = self.lowest = self.first = inf

    def add(self, loss: float) -> bool:
        """Add a finite loss; returns whether the loss has exploded."""
        if not self.recent:
            self.first = loss
        self.recent.append(loss)
        if len(self.recent) < LEAST:
            return False
        self.level = median(self.recent)
        self.lowest = min(self.lowest, self.level)
        if min(self.lowest, self.first) <= 0:  # of losses that may be negative nothing is known
            return False
        risen = self.level > max(FACTOR * self.lowest, SHARE_OF_FIRST * self.first)
        return risen or self.level > FACTOR_OF_FIRST * self.first


class LossWatch(Hook):
    """Warns once of a loss that explodes, see :class:`LossLevel`.

    Args:
        good: Later checkpoints are not good.
    """

    def __init__(self, good: GoodCheckpoint) -> None:
        self.good = good
        self.level: LossLevel | None = LossLevel()

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: dict | None = None) -> None:
        """Look at the loss of an iteration."""
        loss = (outputs or {}).get('loss')
        if self.level is None or loss is None or not isfinite(loss := number(loss)):
            return
        if self.level.add(loss):
            self.good.is_final = True
            good = self.good.path
            before = f'; the last checkpoint before it is {good}' if good else ''
            runner.logger.warning(
                f'the loss has exploded by iteration {runner.iter + 1}: the median of the last '
                f'{WINDOW} is {self.level.level:.4g}, and was {self.level.lowest:.4g} at its '
                f'lowest, {self.level.first:.4g} at first. It may help to {ADVICE}{before}')
            self.level = None
