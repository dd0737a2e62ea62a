"""Your ViT is Secretly an Image Segmentation Model (EoMT, arXiv 2503.19108): its heads.

The queries of a head run through the last blocks of the backbone, which are masked while training.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS
from mmengine.runner import Runner
from torch import Tensor

from colonnade.backbones.plain_vit.query_tokens import QueryTokens
from colonnade.common.errors import UserError

from .mask_queries import MaskQueryHead, draw_open_patches
from .semantic_mask_queries import SemanticMaskQueryHead

POWER = 0.9  # of the polynomial decay of masked attention


def compute_mask_probability(block: int, num_blocks: int, iteration: int, max_iters: int) -> float:
    """Return the probability that attention is masked (EoMT, section 3.3).

    The run is cut into ``num_blocks + 2`` equal phases. The probability of a block is 1 at first,
    decreases in phase ``block + 1``, and is 0 afterwards.

    Args:
        block: Index among the last blocks.
        num_blocks: Number of last blocks.
        iteration: Number of iterations before this one.
        max_iters: Number of iterations of the run.
    """
    phase = max(max_iters // (num_blocks + 2), 1)
    progress = min(max(iteration / phase - (block + 1), 0.), 1.)
    return (1 - progress)**POWER


class QueriesInBackbone:
    """Mixin of heads whose queries run through the last blocks of a backbone.

    Attributes:
        progress: Iteration and length of the training, which :class:`MaskAnnealingHook` sets.
    """
    progress: tuple[int, int] = (0, 1)

    def forward(self,
                x: Sequence[Any],
                batch_data_samples: Any = None) -> tuple[list[Tensor], list[Tensor]]:
        """Run the last blocks, and predict classes and masks.

        In training, there is a prediction before each of these blocks, whose masks are those of the
        block's attention, and one after the last block. In evaluation, there is only the last.

        Args:
            x: Output of a :class:`.PlainViT` with ``num_query_blocks``.
            batch_data_samples: Not used; mmdet and mmseg pass it to all heads.

        Returns:
            Class logits ``(B, Q, K + 1)`` and mask logits ``(B, Q, s h, s w)`` of each prediction.

        Raises:
            ValueError: If the backbone has run all its blocks.
        """
        tokens = x[-1]
        if not isinstance(tokens, QueryTokens):
            raise UserError(f'{type(self).__name__} runs the last blocks of a PlainViT: set '
                            'model.backbone.num_query_blocks, and no neck')
        num_queries, num_blocks = len(self.q.weight), tokens.num_blocks
        x, predictions = tokens.prepend(self.q.weight), []
        for block in range(num_blocks):
            open_patches = None
            if self.training:
                predictions.append(self.predict_masks(*tokens.split(x, num_queries)))
                probability = compute_mask_probability(block, num_blocks, *self.progress)
                if probability:
                    open_patches = draw_open_patches(predictions[-1][1], tokens.grid, probability)
            x = tokens.run_block(block, x, open_patches)
        predictions.append(self.predict_masks(*tokens.split(x, num_queries)))
        classes, masks = zip(*predictions, strict=True)
        return list(classes), list(masks)


@MODELS.register_module()
class EoMTHead(QueriesInBackbone, MaskQueryHead):
    """Instance and panoptic segmentation; arguments as for :class:`.MaskQueryHead`."""


@MODELS.register_module()
class SemanticEoMTHead(QueriesInBackbone, SemanticMaskQueryHead):
    """Semantic segmentation; arguments as for :class:`.SemanticMaskQueryHead`."""


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Hook that anneals masked attention, see :func:`compute_mask_probability`.

    Probabilities depend only on the iteration and the length of the training, so a resumed run
    continues where it stopped.
    """

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Pass the progress of the training to all heads."""
        for module in runner.model.modules():
            if isinstance(module, QueriesInBackbone):
                module.progress = runner.iter, runner.max_iters
