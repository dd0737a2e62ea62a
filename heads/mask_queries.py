"""Masks and classes of queries, as EoMT (arXiv 2503.19108) and PMT (arXiv 2603.25398) predict them.

Shapes: ``B`` images, ``Q`` queries, ``C`` width, ``K`` classes, ``h, w`` the grid of patches.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.registry import TASK_UTILS
from mmengine.model import BaseModule
from mmengine.structures import InstanceData
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError

#: how masks are compared with objects: number of points, and how they are drawn
POINTS = dict(num_points=12544, oversample_ratio=3.0, importance_sample_ratio=0.75)


class ScaleBlock(nn.Module):
    """Doubles the resolution of a map (EoMT, section 3.1).

    Args:
        dim: Width of the map.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(dim, dim, kernel_size=2, stride=2)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim, bias=False)
        self.norm = LayerNorm2d(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Upscale a map ``(B, C, h, w)`` to ``(B, C, 2 h, 2 w)``."""
        return self.norm(self.conv2(self.act(self.conv1(x))))


def build_mask_head(dim: int) -> nn.Sequential:
    """Build the three layers that turn queries ``(B, Q, C)`` into weights of masks."""
    return nn.Sequential(
        nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))


def draw_open_patches(mask_logits: Tensor, grid: tuple[int, int],
                      probability: float | Tensor) -> Tensor:
    """Return which patches each query may attend to: masked attention (EoMT, section 3.2).

    A query that is masked attends to patches where its mask, resized to the grid, is positive. If
    there are none, it attends only to queries and prefix tokens.

    Args:
        mask_logits: Predicted masks ``(B, Q, H, W)``.
        grid: Rows and columns of patches.
        probability: Probability that a query is masked, for each image and query.

    Returns:
        Booleans ``(B, Q, h w)``, without gradient.
    """
    with torch.no_grad():
        open_ = F.interpolate(mask_logits, grid, mode='bilinear').flatten(2) > 0
        if probability < 1:
            masked = torch.rand(open_.shape[:2], device=open_.device) < probability
            open_ |= ~masked[..., None]
        return open_


class MaskQueryHead(Mask2FormerHead):
    """Predicts masks and classes of queries, with the matching and losses of Mask2Former.

    Subclasses implement ``forward(x, batch_data_samples)``, which returns the class logits and the
    mask logits of all predictions as two lists. Detectors are mmdet's ``Mask2Former``.

    Args:
        in_channels: Width C of queries and patches.
        patch_size: Side of the patches in pixels.
        num_queries: Number of queries.
        num_things_classes: Number of classes of objects.
        num_stuff_classes: Number of other classes.
        loss_weights: Weights of the losses of classes, masks and Dice, which also are the costs of
            the matching.
        no_object_weight: Weight of the class of queries without an object.
        train_cfg: ``num_points``, ``oversample_ratio`` and ``importance_sample_ratio`` of the
            points at which masks are compared; see Mask2Former (arXiv 2112.01527), section 3.3.
        test_cfg: Settings that detectors pass to all heads; they have no effect here.
        init_cfg: See :class:`mmengine.model.BaseModule`.

    Raises:
        ValueError: If ``train_cfg`` has an unknown key.
    """

    def __init__(self,
                 in_channels: int,
                 *,
                 patch_size: int = 16,
                 num_queries: int = 200,
                 num_things_classes: int = 80,
                 num_stuff_classes: int = 53,
                 loss_weights: tuple[float, float, float] = (2., 5., 5.),
                 no_object_weight: float = 0.1,
                 train_cfg: Mapping[str, Any] | None = None,
                 test_cfg: Mapping[str, Any] | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        BaseModule.__init__(self, init_cfg)  # the parent would build its decoders
        self.num_queries = num_queries
        self.num_things_classes = num_things_classes
        self.num_stuff_classes = num_stuff_classes
        self.num_classes = num_things_classes + num_stuff_classes
        self.patch_size = patch_size
        self.q = nn.Embedding(num_queries, in_channels)
        self.class_head = nn.Linear(in_channels, self.num_classes + 1)
        self.mask_head = build_mask_head(in_channels)
        num_doublings = max(1, int(math.log2(patch_size)) - 2)
        self.upscale = nn.Sequential(*(ScaleBlock(in_channels) for _ in range(num_doublings)))
        self.mask_stride = patch_size / 2**num_doublings
        self.test_cfg = test_cfg
        self._build_losses(loss_weights, no_object_weight, dict(train_cfg or {}))

    def _build_losses(self, weights: tuple[float, float, float], no_object_weight: float,
                      train_cfg: dict[str, Any]) -> None:
        """Build what the parent's methods need to match queries with objects."""
        if unknown := set(train_cfg) - set(POINTS):
            raise UserError(f'train_cfg of {type(self).__name__} accepts only keys of '
                            f'{sorted(POINTS)}, got {sorted(unknown)}')
        self.train_cfg = POINTS | train_cfg
        for name, value in self.train_cfg.items():
            setattr(self, name, value)
        class_weight, mask_weight, dice_weight = weights
        self.assigner = TASK_UTILS.build(
            dict(
                type='mmdet.HungarianAssigner',
                match_costs=[
                    dict(type='mmdet.ClassificationCost', weight=class_weight),
                    dict(type='mmdet.CrossEntropyLossCost', weight=mask_weight, use_sigmoid=True),
                    dict(type='mmdet.DiceCost', weight=dice_weight, pred_act=True, eps=1.0),
                ]))
        self.sampler = TASK_UTILS.build(
            dict(type='mmdet.MaskPseudoSampler'), default_args=dict(context=self))
        self.class_weight = [1.] * self.num_classes + [no_object_weight]
        self.loss_cls = MMDET_MODELS.build(
            dict(
                type='mmdet.CrossEntropyLoss',
                loss_weight=class_weight,
                class_weight=self.class_weight))
        self.loss_mask = MMDET_MODELS.build(
            dict(type='mmdet.CrossEntropyLoss', use_sigmoid=True, loss_weight=mask_weight))
        self.loss_dice = MMDET_MODELS.build(
            dict(type='mmdet.DiceLoss', naive_dice=True, eps=1.0, loss_weight=dice_weight))

    def init_weights(self) -> None:
        """Initialize as torch does; the parent would look for its decoders."""
        BaseModule.init_weights(self)

    def predict_masks(self, queries: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Predict class logits ``(B, Q, K + 1)`` and mask logits ``(B, Q, s h, s w)``.

        Args:
            queries: Normalized queries ``(B, Q, C)``.
            patches: Normalized patches ``(B, C, h, w)``; ``s`` is 4 for patches of 16 pixels.
        """
        masks = torch.einsum('bqc,bchw->bqhw', self.mask_head(queries), self.upscale(patches))
        return self.class_head(queries), masks

    def loss_by_feat(self, all_cls_scores: list[Tensor], all_mask_preds: list[Tensor],
                     batch_gt_instances: list[InstanceData],
                     batch_img_metas: list[dict]) -> dict[str, Tensor]:
        """Compute the losses of all predictions, see mmdet's ``MaskFormerHead``."""
        height, width = self._get_padded_size(all_mask_preds[-1])
        padded = [
            InstanceData(
                labels=instances.labels,
                masks=F.pad(
                    instances.masks,
                    (0, width - instances.masks.shape[2], 0, height - instances.masks.shape[1])))
            for instances in batch_gt_instances
        ]
        return super().loss_by_feat(all_cls_scores, all_mask_preds, padded, batch_img_metas)

    def predict(self, x: Any, batch_data_samples: list) -> tuple[Tensor, Tensor]:
        """Return class logits ``(B, Q, K + 1)`` and masks ``(B, Q, H, W)`` of a batch of images."""
        classes, masks = self(x, batch_data_samples)
        size = batch_data_samples[0].metainfo['batch_input_shape']
        return classes[-1], self.resize_masks(masks[-1], size)

    def resize_masks(self, masks: Tensor, size: tuple[int, int]) -> Tensor:
        """Resize mask logits to images of a size, without their padding to whole patches."""
        masks = F.interpolate(masks, self._get_padded_size(masks), mode='bilinear')
        return masks[..., :size[0], :size[1]]

    def _get_padded_size(self, masks: Tensor) -> tuple[int, int]:
        """Return height and width of images that are padded to whole patches."""
        height, width = (int(side * self.mask_stride) for side in masks.shape[-2:])
        return height, width
