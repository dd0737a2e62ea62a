"""Annealing of masked attention: queries see all patches at the end of the training.

See EoMT (arXiv 2503.19108), section 3.3.
"""
from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

POWER = 0.9  # of the polynomial decay


class AnnealedMasks:
    """Mixin of heads with masked attention.

    Attributes:
        progress: Iteration and length of the training, which :class:`MaskAnnealingHook` sets.
    """
    progress: tuple[int, int] = (0, 1)

    def compute_probabilities(self, num_blocks: int) -> list[float]:
        """Return the probability that queries are masked, for each block.

        The run is cut into ``num_blocks + 2`` equal phases. The probability of a block is 1 at
        first, decreases in the phase after its index, and is 0 afterwards.
        """
        iteration, max_iters = self.progress
        phase = max(max_iters // (num_blocks + 2), 1)
        starts = [(block + 1) * phase for block in range(num_blocks)]
        return [(1 - min(max((iteration - start) / phase, 0.), 1.))**POWER for start in starts]


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Hook that passes the progress of the training to heads with masked attention.

    It has no state, so resumed runs continue with the same probabilities.
    """

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Set the progress of all heads."""
        for module in runner.model.modules():
            if isinstance(module, AnnealedMasks):
                module.progress = runner.iter, runner.max_iters
