"""Your ViT is Secretly an Image Segmentation Model (EoMT, arXiv 2503.19108): its heads.

The queries of a head run through the last blocks of the backbone, which are masked while training.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.registry import MODELS
from torch import Tensor

from colonnade.backbones.plain_vit.query_tokens import QueryTokens
from colonnade.common.errors import UserError

from .mask_annealing import AnnealedMasks
from .mask_queries import MaskQueryHead, draw_open_patches
from .semantic_mask_queries import SemanticMaskQueryHead


class QueriesInBackbone(AnnealedMasks, MaskQueryHead):
    """Base class of heads whose queries run through the last blocks of a backbone."""

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
                            'model.backbone.num_query_blocks, and remove the neck')
        num_queries, num_blocks = len(self.q.weight), tokens.num_blocks
        probabilities = self.compute_probabilities(num_blocks)
        x, predictions = tokens.prepend(self.q.weight), []
        for block, probability in enumerate(probabilities):
            open_patches = None
            if self.training:
                predictions.append(self.predict_masks(*tokens.split(x, num_queries)))
                if probability:
                    open_patches = draw_open_patches(predictions[-1][1], tokens.grid, probability)
            x = tokens.run_block(block, x, open_patches)
        predictions.append(self.predict_masks(*tokens.split(x, num_queries)))
        classes, masks = zip(*predictions, strict=True)
        return list(classes), list(masks)


@MODELS.register_module()
class EoMTHead(QueriesInBackbone):
    """Instance and panoptic segmentation; arguments as for :class:`.MaskQueryHead`."""


@MODELS.register_module()
class SemanticEoMTHead(QueriesInBackbone, SemanticMaskQueryHead):
    """Semantic segmentation; arguments as for :class:`.SemanticMaskQueryHead`."""
