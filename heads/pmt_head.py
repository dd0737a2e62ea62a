"""Heads of PMT, the Plain Mask Transformer (arXiv 2603.25398), for mmdet and mmseg.

Shapes: ``B`` images, ``Q`` queries, ``C`` width, ``K`` classes, ``h, w`` the grid of patches.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor

from .head_files import PMT_DECODER, load_pretrained_head
from .mask_annealing import AnnealedMasks
from .mask_queries import MaskQueryHead, draw_open_patches
from .pmt_decoder import Feature, PlainMaskDecoder
from .semantic_mask_queries import SemanticMaskQueryHead


class QueryDecoding(AnnealedMasks, MaskQueryHead):
    """Queries decoded by a :class:`.PlainMaskDecoder`, base class of both heads.

    Args:
        in_channels: Width C of the feature maps.
        num_features: Number of feature maps.
        num_blocks: Number of blocks of the decoder.
        num_heads: Number of attention heads. Defaults to heads of 64 channels.
        norm_cfg: Batch norm of each feature map. Defaults to ``type='BN'``.
        **kwargs: Arguments of :class:`.MaskQueryHead`, or of :class:`.SemanticMaskQueryHead`. An
            ``init_cfg`` with ``type='Pretrained'`` loads the file of a published decoder, strictly.
    """

    def __init__(self,
                 in_channels: int,
                 *,
                 num_features: int = 4,
                 num_blocks: int = 6,
                 num_heads: int | None = None,
                 norm_cfg: dict[str, Any] | None = None,
                 **kwargs: Any) -> None:
        super().__init__(in_channels, **kwargs)
        self.decoder = PlainMaskDecoder(
            in_channels,
            num_features=num_features,
            num_blocks=num_blocks,
            num_heads=num_heads,
            norm_cfg=norm_cfg)

    def init_weights(self) -> None:
        """Load the published decoder of ``init_cfg``, or initialize as torch does.

        Raises:
            FileNotFoundError: If the file does not exist.
            WeightsError: If the file cannot be fetched or read, or does not fit.
        """
        if not load_pretrained_head(self, PMT_DECODER):
            super().init_weights()

    def forward(self,
                x: Sequence[Feature],
                batch_data_samples: Any = None) -> tuple[list[Tensor], list[Tensor]]:
        """Predict from feature maps, in training also before each block.

        Args:
            x: Maps ``(B, C, h, w)``, shallow to deep, or pairs of them and prefix tokens.
            batch_data_samples: Not used.

        Returns:
            Class logits ``(B, Q, K + 1)`` and mask logits ``(B, Q, s h, s w)`` of each prediction;
            ``s`` is 4 for patches of 16 pixels.

        Raises:
            ValueError: If the number of maps is wrong.
        """
        probabilities = self.compute_probabilities(len(self.decoder.blocks))
        return self.decode(x, probabilities if self.training else None)

    def decode(self, features: Sequence[Feature],
               mask_probs: Sequence[float] | None) -> tuple[list[Tensor], list[Tensor]]:
        """Predict as :meth:`forward`, with the probabilities of masks, or None for one prediction.
        """
        x, grid = self.decoder.join(features)
        x = torch.cat((self.q.weight.expand(len(x), -1, -1), x), dim=1)
        rope = self.decoder.embed_positions(grid)
        predictions = []
        for index, block in enumerate(self.decoder.blocks):
            open_patches = None
            if mask_probs is not None:
                predictions.append(self._predict(x, grid))
                if mask_probs[index] > 0:
                    open_patches = draw_open_patches(predictions[-1][1], grid, mask_probs[index])
            x = block(x, grid, rope, open_patches)
        predictions.append(self._predict(x, grid))
        classes, masks = zip(*predictions, strict=True)
        return list(classes), list(masks)

    def _predict(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        x = self.decoder.decoder_norm(x)
        patches = x[:, -grid[0] * grid[1]:].mT.unflatten(2, grid)
        return self.predict_masks(x[:, :self.num_queries], patches)


@MODELS.register_module()
class PMTHead(QueryDecoding):
    """PMT for instances and panoptic segmentation, in mmdet's ``Mask2Former`` without a neck.

    See :class:`QueryDecoding` for the decoder's arguments, and :class:`.MaskQueryHead` for others.
    """


@MODELS.register_module()
class SemanticPMTHead(QueryDecoding, SemanticMaskQueryHead):
    """PMT for semantic segmentation, in mmseg's ``EncoderDecoder`` without a neck.

    See :class:`QueryDecoding` for the decoder's arguments, and :class:`.SemanticMaskQueryHead` for
    others.
    """
