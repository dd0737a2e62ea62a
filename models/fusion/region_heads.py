"""Fast subclasses of mmdet's modules for RoIs; importing this module imports mmdet.

Names and weights stay. Where the fast implementation cannot be used, as on GPUs, mmdet's is.
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
from colonnade.backbones.kernels.fast_path import is_exact_type
from colonnade.backbones.kernels.folding import FusedError

from ..cascade_roi_head import MeanScoreCascadeRoIHead
from ..replacement import copy_as, replace_modules
from .masks import (ClassMaskCascadeRoIHead, ClassMaskHead, ClassMaskMeanScoreCascadeRoIHead,
                    ClassMaskRoIHead, PastingMaskHead)
from .roi_align import BagRoIAlign, align_into, can_use_bags

ROI_HEADS = {
    StandardRoIHead: ClassMaskRoIHead,
    CascadeRoIHead: ClassMaskCascadeRoIHead,
    MeanScoreCascadeRoIHead: ClassMaskMeanScoreCascadeRoIHead,
}
BOX_HEADS = (ConvFCBBoxHead, Shared2FCBBoxHead, Shared4Conv1FCBBoxHead)
MASK_HEADS = (FCNMaskHead, PastingMaskHead, ClassMaskHead)
SUMMED = 'RoI extractors sum pixels of channels-last maps'
FLATTENED = 'box heads flatten RoIs without a copy'
PASTED = 'mask heads paste each mask in the region of its box'
SPLIT = 'RPN applies NMS level by level'
PREDICTED = 'mask heads compute only logits of the predicted class'


class BagRoIExtractor(SingleRoIExtractor):
    """RoI extractor that writes each RoI once, in channels last."""
    exact_regions = True  # corners of RoIs stay float32 in half precision
    channels_last: bool = False  # .view of some heads needs the default format

    def forward(self,
                feats: Sequence[Tensor],
                rois: Tensor,
                roi_scale_factor: float | None = None) -> Tensor:
        """Extract RoIs ``(k, 5)`` of maps ``(B, C, H, W)`` to ``(k, C, h, w)``."""
        if not all(map(can_use_bags, self.roi_layers, feats, [rois] * len(feats))):
            dtype = torch.promote_types(feats[0].dtype, torch.float32)  # mmdet casts rois to it
            exact = [feature.to(dtype) for feature in feats]
            return super().forward(exact, rois, roi_scale_factor).to(feats[0].dtype)
        is_single = len(feats) == 1  # mmdet neither chooses a level nor rescales then
        levels = self.map_roi_levels(rois, len(feats))
        if roi_scale_factor is not None and not is_single:
            rois = self.roi_rescale(rois, roi_scale_factor)
        out = feats[0].new_empty(len(rois), *self.roi_layers[0].output_size, self.out_channels)
        for level, (layer, feature) in enumerate(zip(self.roi_layers, feats, strict=False)):
            indices = (levels == level).nonzero()[:, 0]
            align_into(out, indices, feature, rois[indices], layer.spatial_scale,
                       layer.sampling_ratio, layer.aligned)
        regions = out.permute(0, 3, 1, 2)
        return regions if self.channels_last else regions.contiguous()


class ChannelsLast(nn.Module):
    """Permutation of ``(k, C, h, w)`` to ``(k, h, w, C)``, which flattens without a copy."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


def fuse_regions(model: nn.Module) -> list[str]:
    """Make a detector align, classify and paste RoIs fast, for evaluation.

    Predictions stay the same up to rounding error. Layers that are replaced or hooked stay.
    """
    done, replacements = Counter[str](), dict[nn.Module, nn.Module]()
    for module in model.modules():
        if is_exact_type(module, *ROI_HEADS) and module.with_mask and all(
                map(can_predict_by_class, get_stages(module, 'mask_head'))):
            replacements[module] = copy_as(ROI_HEADS[type(module)], module)
            for head in get_stages(module, 'mask_head'):
                replacements[head] = copy_as(ClassMaskHead, head)
                done.update((PASTED, PREDICTED))
        elif is_exact_type(module, FCNMaskHead) and module not in replacements:
            replacements[module] = copy_as(PastingMaskHead, module)
            done[PASTED] += 1
        elif is_exact_type(module, SingleRoIExtractor) and all(
                map(is_average_align, module.roi_layers)):
            replacements[module] = copy_as(BagRoIExtractor, module)
            done[SUMMED] += 1
        elif is_exact_type(module, GenericRoIExtractor) and all(
                map(is_average_align, module.roi_layers)):
            replacements |= {layer: copy_as(BagRoIAlign, layer) for layer in module.roi_layers}
            done[SUMMED] += 1
        elif is_exact_type(module, RPNHead) and can_split_nms(module):
            apply_nms_per_level(module)
            done[SPLIT] += 1
    replace_modules(model, replacements)
    for module in filter(can_read_any_format, list(model.modules())):
        done.update(FLATTENED for _ in keep_channels_last(module))
    return [f'{change} ({count})' for change, count in done.items()]


def find_modules_in_default_order(model: nn.Module) -> set[nn.Module]:
    """Return all modules of RoI heads that need RoIs in the default memory format.

    Convolutions output channels last if only their weights are in it.
    """
    return {
        module
        for head in model.modules()
        if isinstance(head, BaseRoIHead) and not can_read_any_format(head)
        for module in head.modules()
    }


def is_average_align(layer: nn.Module) -> bool:
    """Return True if a layer is average RoIAlign."""
    return is_exact_type(layer, RoIAlign) and layer.pool_mode == 'avg'


def can_read_any_format(roi_head: nn.Module) -> bool:
    """Return True if an RoI head of mmdet can read RoIs in any memory format."""
    if not is_exact_type(roi_head, *ROI_HEADS, *ROI_HEADS.values()) or roi_head.with_shared_head:
        return False
    heads = get_stages(roi_head, 'bbox_head') + get_stages(roi_head, 'mask_head')
    return all(
        is_exact_type(head, *BOX_HEADS, *MASK_HEADS) and head.conv_cfg is None for head in heads)


def keep_channels_last(roi_head: StandardRoIHead | CascadeRoIHead) -> list[nn.Module]:
    """Pass RoIs to heads in channels last, and return the box heads that flatten them."""
    extractors = get_stages(roi_head, 'bbox_roi_extractor')
    for extractor in extractors + get_stages(roi_head, 'mask_roi_extractor'):
        if type(extractor) is BagRoIExtractor:
            extractor.channels_last = True
    flattened = []
    for extractor, head in zip(extractors, get_stages(roi_head, 'bbox_head'), strict=False):
        if type(extractor) is BagRoIExtractor and _can_flatten(head):
            flatten_channels_last(head)
            flattened.append(head)
    return flattened


def _can_flatten(head: ConvFCBBoxHead) -> bool:
    """Return True if the first linear layer of a box head on a CPU gets full RoIs."""
    return (head.num_shared_fcs > 0 and not head.with_avg_pool
            and is_exact_type(head.shared_fcs[0], nn.Linear)
            and should_use_cpu_forms(head.shared_fcs[0].weight)
            and not any(isinstance(layer, ChannelsLast) for layer in head.shared_convs))


@torch.no_grad()
def flatten_channels_last(head: ConvFCBBoxHead) -> None:
    """Permute the weights of the first linear layer for RoIs in channels last."""
    layer = head.shared_fcs[0]
    weight = layer.weight.unflatten(1, (-1, *head.roi_feat_size)).permute(0, 2, 3, 1)
    layer.weight = nn.Parameter(weight.flatten(1), requires_grad=layer.weight.requires_grad)
    head.shared_convs.append(ChannelsLast())
    head.num_shared_convs += 1
    head.register_load_state_dict_pre_hook(reject_weights)


def reject_weights(head: ConvFCBBoxHead, *_: Any) -> None:
    """Reject weights of files before loading, since they have another order."""
    raise FusedError(f'a fused {type(head).__name__} cannot load weights: load them first, '
                     'then call fuse()')


def get_stages(roi_head: StandardRoIHead | CascadeRoIHead, name: str) -> list[nn.Module]:
    """Return the modules of a name in all stages, if there are any."""
    part = dict(roi_head.named_children()).get(name)
    if isinstance(part, nn.ModuleList):
        return list(part)
    return [] if part is None else [part]


def can_predict_by_class(head: nn.Module) -> bool:
    """Return True if masks are chosen from logits of all classes after one upsampling layer."""
    if not is_exact_type(head, FCNMaskHead) or head.class_agnostic:
        return False
    upsampler, last = head.upsample, head.conv_logits
    return (is_exact_type(upsampler, nn.ConvTranspose2d, ConvTranspose2d)
            and is_exact_type(last, nn.Conv2d, Conv2d) and last.kernel_size == (1, 1)
            and upsampler.kernel_size == upsampler.stride
            and upsampler.stride[0] == upsampler.stride[1]
            and upsampler.padding == upsampler.output_padding == (0, 0)
            and upsampler.groups == last.groups == 1 and upsampler.bias is not None
            and last.bias is not None)


def can_split_nms(head: RPNHead) -> bool:
    """Return True if NMS of an RPN can be split by levels, which offsets separate anyway."""
    nms = (head.test_cfg or {}).get('nms') or {}  # None without NMS
    return (bool(nms) and nms.get('type', 'nms') == 'nms'
            and not nms.keys() & {'split_thr', 'class_agnostic'})


def apply_nms_per_level(head: RPNHead) -> None:
    """Make mmcv apply NMS to the boxes of each level separately, whatever their number."""
    head.test_cfg = copy.deepcopy(head.test_cfg)
    head.test_cfg['nms']['split_thr'] = 0
