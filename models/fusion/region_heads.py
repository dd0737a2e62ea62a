"""mmdet's modules for regions, which give way to fast subclasses.

Names and weights stay. Where their fast form cannot be used, as on GPUs, they do what mmdet does.
Importing it imports mmdet.
"""
from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from mmcv.cnn.bricks.wrappers import Conv2d, ConvTranspose2d
from mmcv.ops import RoIAlign
from mmdet.models.dense_heads import RPNHead
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.models.roi_heads.base_roi_head import BaseRoIHead
from mmdet.models.roi_heads.bbox_heads import (ConvFCBBoxHead, Shared2FCBBoxHead,
                                               Shared4Conv1FCBBoxHead)
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import GenericRoIExtractor, SingleRoIExtractor
from torch import Tensor, nn

from colonnade.backbones.kernels.devices import should_use_cpu_forms
from colonnade.backbones.kernels.fast_path import is_plain
from colonnade.backbones.kernels.folding import FusedError

from ..replacement import copy_as, replace_modules
from .masks import PastingMaskHead, WantedCascadeRoIHead, WantedMaskHead, WantedStandardRoIHead
from .roi_align import BagRoIAlign, align_into, suits_bags

ROI_HEADS = {StandardRoIHead: WantedStandardRoIHead, CascadeRoIHead: WantedCascadeRoIHead}
BOX_HEADS = (ConvFCBBoxHead, Shared2FCBBoxHead, Shared4Conv1FCBBoxHead)
MASK_HEADS = (FCNMaskHead, PastingMaskHead, WantedMaskHead)
SUMMED = 'RoI extractors sum pixels of channels-last maps'
FLATTENED = 'box heads flatten regions without a copy'
PASTED = 'mask heads paste each mask on the region of its box'
SPLIT = 'RPN suppresses boxes level by level'
WANTED = 'mask heads compute logits of the predicted class alone'


class BagRoIExtractor(SingleRoIExtractor):
    """mmdet's extractor, whose regions are written once, in channels-last order.

    Attributes:
        exact_regions: The corners of regions stay float32 beside maps of half types.
        channels_last: Whether they are handed on so; ``.view`` of other heads needs the default.
    """
    exact_regions = True
    channels_last: bool = False

    def forward(self,
                feats: Sequence[Tensor],
                rois: Tensor,
                roi_scale_factor: float | None = None) -> Tensor:
        """Regions ``(k, 5)`` of maps ``(B, C, H, W)``: ``(k, C, h, w)``."""
        if not all(map(suits_bags, self.roi_layers, feats, [rois] * len(feats))):
            dtype = torch.promote_types(feats[0].dtype, torch.float32)  # mmdet's rois get it, too
            exact = [feature.to(dtype) for feature in feats]
            return super().forward(exact, rois, roi_scale_factor).to(feats[0].dtype)
        alone = len(feats) == 1  # mmdet neither chooses a level nor rescales then
        levels = self.map_roi_levels(rois, len(feats))
        if roi_scale_factor is not None and not alone:
            rois = self.roi_rescale(rois, roi_scale_factor)
        out = feats[0].new_empty(len(rois), *self.roi_layers[0].output_size, self.out_channels)
        for level, (layer, feature) in enumerate(zip(self.roi_layers, feats, strict=False)):
            places = (levels == level).nonzero()[:, 0]
            align_into(out, places, feature, rois[places], layer.spatial_scale,
                       layer.sampling_ratio, layer.aligned)
        regions = out.permute(0, 3, 1, 2)
        return regions if self.channels_last else regions.contiguous()


class ChannelsBehind(nn.Module):
    """Regions ``(k, C, h, w)`` as ``(k, h, w, C)``, which are flattened without a copy."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


def fuse_regions(model: nn.Module) -> list[str]:
    """Make a detector that is to be evaluated align, classify and paste regions fast.

    What it predicts stays the same to rounding. Layers that were replaced or hooked stay as they
    are.
    """
    done, replacements = Counter[str](), dict[nn.Module, nn.Module]()
    for module in model.modules():
        if is_plain(module, *ROI_HEADS) and module.with_mask and all(
                map(predicts_by_class, stages_of(module, 'mask_head'))):
            replacements[module] = copy_as(ROI_HEADS[type(module)], module)
            for head in stages_of(module, 'mask_head'):
                replacements[head] = copy_as(WantedMaskHead, head)
                done.update((PASTED, WANTED))
        elif is_plain(module, FCNMaskHead) and module not in replacements:
            replacements[module] = copy_as(PastingMaskHead, module)
            done[PASTED] += 1
        elif is_plain(module, SingleRoIExtractor) and all(map(is_average, module.roi_layers)):
            replacements[module] = copy_as(BagRoIExtractor, module)
            done[SUMMED] += 1
        elif is_plain(module, GenericRoIExtractor) and all(map(is_average, module.roi_layers)):
            replacements |= {layer: copy_as(BagRoIAlign, layer) for layer in module.roi_layers}
            done[SUMMED] += 1
        elif is_plain(module, RPNHead) and suppresses_by_level(module):
            split_suppression(module)
            done[SPLIT] += 1
    replace_modules(model, replacements)
    for module in filter(reads_any_order, list(model.modules())):
        done.update(FLATTENED for _ in keep_channels_last(module))
    return [f'{what} ({count})' for what, count in done.items()]


def modules_in_default_order(model: nn.Module) -> set[nn.Module]:
    """Return all modules of RoI heads that get regions in the default order.

    They may need that order later on. Convolutions give maps in channels-last order also if their
    weights alone are in it.
    """
    return {
        module
        for head in model.modules() if isinstance(head, BaseRoIHead) and not reads_any_order(head)
        for module in head.modules()
    }


def is_average(layer: nn.Module) -> bool:
    """Whether it is RoIAlign that averages."""
    return is_plain(layer, RoIAlign) and layer.pool_mode == 'avg'


def reads_any_order(roi_head: nn.Module) -> bool:
    """Whether it is a RoI head of mmdet that only reads regions in ways that suit any order."""
    if not is_plain(roi_head, *ROI_HEADS, *ROI_HEADS.values()) or roi_head.with_shared_head:
        return False
    heads = stages_of(roi_head, 'bbox_head') + stages_of(roi_head, 'mask_head')
    return all(is_plain(head, *BOX_HEADS, *MASK_HEADS) and head.conv_cfg is None for head in heads)


def keep_channels_last(roi_head: StandardRoIHead | CascadeRoIHead) -> list[nn.Module]:
    """Let heads get regions in the order they are written in; the box heads that flatten them."""
    extractors = stages_of(roi_head, 'bbox_roi_extractor')
    for extractor in extractors + stages_of(roi_head, 'mask_roi_extractor'):
        if type(extractor) is BagRoIExtractor:
            extractor.channels_last = True
    flattened = []
    for extractor, head in zip(extractors, stages_of(roi_head, 'bbox_head'), strict=False):
        if type(extractor) is BagRoIExtractor and flattens(head):
            flatten_channels_last(head)
            flattened.append(head)
    return flattened


def flattens(head: ConvFCBBoxHead) -> bool:
    """Whether the first linear layer of a box head on a CPU gets the whole regions."""
    return (head.num_shared_fcs > 0 and not head.with_avg_pool
            and is_plain(head.shared_fcs[0], nn.Linear)
            and should_use_cpu_forms(head.shared_fcs[0].weight)
            and not any(isinstance(layer, ChannelsBehind) for layer in head.shared_convs))


@torch.no_grad()
def flatten_channels_last(head: ConvFCBBoxHead) -> None:
    """Order the weights of the first linear layer as channels-last regions lie in memory."""
    layer = head.shared_fcs[0]
    weight = layer.weight.unflatten(1, (-1, *head.roi_feat_size)).permute(0, 2, 3, 1)
    layer.weight = nn.Parameter(weight.flatten(1), requires_grad=layer.weight.requires_grad)
    head.shared_convs.append(ChannelsBehind())
    head.num_shared_convs += 1
    head.register_load_state_dict_pre_hook(reject_weights)


def reject_weights(head: ConvFCBBoxHead, *_: Any) -> None:
    """A hook before loading: weights of files are in another order."""
    raise FusedError(f'a fused {type(head).__name__} takes no weights: load, then fuse()')


def stages_of(roi_head: StandardRoIHead | CascadeRoIHead, name: str) -> list[nn.Module]:
    """The parts of this name, of all stages; none if there are none."""
    part = getattr(roi_head, name, None)
    if isinstance(part, nn.ModuleList):
        return list(part)
    return [] if part is None else [part]


def predicts_by_class(head: nn.Module) -> bool:
    """Whether masks are picked from logits of all classes, behind upsampling by one layer."""
    if not is_plain(head, FCNMaskHead) or head.class_agnostic:
        return False
    above, last = head.upsample, head.conv_logits
    return (is_plain(above, nn.ConvTranspose2d, ConvTranspose2d)
            and is_plain(last, nn.Conv2d, Conv2d) and last.kernel_size == (1, 1)
            and above.kernel_size == above.stride and above.stride[0] == above.stride[1]
            and above.padding == above.output_padding == (0, 0) and above.groups == last.groups == 1
            and above.bias is not None and last.bias is not None)


def suppresses_by_level(head: RPNHead) -> bool:
    """Whether its suppression can be split by levels, which offsets keep apart anyway."""
    nms = (head.test_cfg or {}).get('nms') or {}  # without suppression, it is None
    return (bool(nms) and nms.get('type', 'nms') == 'nms'
            and not nms.keys() & {'split_thr', 'class_agnostic'})


def split_suppression(head: RPNHead) -> None:
    """Let mmcv suppress the boxes of each level by themselves, whatever their number."""
    head.test_cfg = copy.deepcopy(head.test_cfg)
    head.test_cfg['nms']['split_thr'] = 0
