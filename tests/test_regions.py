"""Fused RoI heads of detectors, compared with mmdet."""
from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from helpers.rounding import check_rounding
from mmcv.ops import RoIAlign
from mmdet.evaluation import CocoMetric
from mmdet.models.dense_heads import RPNHead
from mmdet.models.roi_heads import DoubleHeadRoIHead, StandardRoIHead
from mmdet.models.roi_heads.bbox_heads import Shared2FCBBoxHead, Shared4Conv1FCBBoxHead
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import GenericRoIExtractor, SingleRoIExtractor
from mmdet.structures import DetDataSample
from mmdet.structures.mask import encode_mask_results
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torchvision.ops import roi_align as theirs

from colonnade.backbones.kernels.folding import FusedError
from colonnade.datasets.rle import encode_masks, encode_masks_for
from colonnade.models.cascade_roi_head import MeanScoreCascadeRoIHead
from colonnade.models.fusion.region_heads import (BagRoIExtractor, ClassMaskHead,
                                                  find_modules_in_default_order, fuse_regions)
from colonnade.models.fusion.roi_align import BagRoIAlign, roi_align
from colonnade.models.replacement import copy_as
from colonnade.settings.reading import read_config

LAYER = dict(type='RoIAlign', output_size=7, sampling_ratio=0)


def draw_regions(num: int, high: int, wide: int, images: int = 2) -> Tensor:
    """Draw regions ``(num, 5)``, of which the first are empty, far outside or everything."""
    size = torch.tensor([wide, high], dtype=torch.float64)
    corners = (torch.rand(num, 2, 2, dtype=torch.float64) * 1.4 - 0.2) * size
    low, high_ = corners.amin(1), corners.amax(1)
    high_[0, 0], high_[1] = low[0, 0], low[1]
    low[2], high_[2] = low[2] + 3 * size, high_[2] + 3 * size
    low[3], high_[3] = 0, size
    return torch.cat((torch.randint(images, (num, 1)).double(), low, high_), 1)


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('ratio', [0, 1, 3])
@pytest.mark.parametrize('size', [(13, 17), (1, 1), (40, 2)])
def test_roi_align(size: tuple[int, int], ratio: int, aligned: bool) -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, 5, *size, dtype=torch.float64)
    rois = draw_regions(40, 4 * size[0], 4 * size[1])
    rest = ((3, 7), 0.25, ratio, aligned)
    exact = theirs(maps, rois, *rest)
    found = roi_align(maps, rois, *rest)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
    exact = theirs(maps, rois.float().double(), *rest)
    single = maps.float().contiguous(memory_format=torch.channels_last)
    found = roi_align(single, rois.float(), *rest)
    check_rounding(found, theirs(single, rois.float(), *rest), exact)
    half = roi_align(single.bfloat16(), rois.float(), *rest)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0.02, atol=0.03)
    assert roi_align(maps, rois[:0], *rest).shape == (0, 5, 3, 7)


def test_roi_align_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('colonnade.models.fusion.roi_align.PIXELS', 50)
    test_roi_align((13, 17), 0, True)


def test_roi_align_falls_back_to_mmcv() -> None:
    layer = copy_as(BagRoIAlign, RoIAlign(3, 0.5))
    maps = torch.randn(1, 2, 6, 8, requires_grad=True)
    region = torch.tensor([[0., 1., 2., 9., 8.]])
    layer(maps, region).sum().backward()
    assert maps.grad.abs().sum() > 0
    far = torch.tensor([[0., 1., 2., 9e4, 8.]])
    with torch.no_grad():
        plain = RoIAlign(3, 0.5)
        torch.testing.assert_close(layer(maps, far), plain(maps, far))
        torch.testing.assert_close(layer(maps, region), plain(maps, region))


@pytest.mark.parametrize('kind', [SingleRoIExtractor, GenericRoIExtractor])
@pytest.mark.parametrize('levels', [1, 3])
def test_extractors(kind: type, levels: int) -> None:
    torch.manual_seed(0)
    strides = [4, 8, 16][:levels]
    plain = kind(roi_layer=LAYER, out_channels=6, featmap_strides=strides)
    parent = nn.Sequential(copy.deepcopy(plain))
    assert fuse_regions(parent) == ['RoI extractors sum pixels of channels-last maps (1)']
    fused, = parent
    maps = [torch.randn(2, 6, 130 // s, 200 // s, dtype=torch.float64) for s in strides]
    rois = draw_regions(30, 120, 190)
    rois[4:9, 3:] += 400  # for the coarse levels
    with torch.no_grad():
        for factor in (None, 1.3):
            torch.testing.assert_close(fused(maps, rois, factor), plain(maps, rois, factor))
        assert fused(maps, rois[:0]).shape == (0, 6, 7, 7)


def build_roi_head(kind: type, box_head: dict, **options: Any) -> StandardRoIHead:
    """Build a head of one class for maps of 6 channels."""
    torch.manual_seed(0)
    layer, size = dict(LAYER, output_size=(3, 4)), dict(roi_feat_size=(3, 4))
    with DefaultScope.overwrite_default_scope('mmdet'):
        head = kind(
            bbox_roi_extractor=dict(
                type='SingleRoIExtractor', roi_layer=layer, out_channels=6, featmap_strides=[4]),
            bbox_head=dict(in_channels=6, fc_out_channels=8, num_classes=1, **size, **box_head),
            **options)
    head.init_weights()
    return head.double().eval()


@pytest.mark.parametrize('kind', [Shared2FCBBoxHead, Shared4Conv1FCBBoxHead])
@torch.no_grad()
def test_box_heads(kind: type) -> None:
    options = dict(conv_out_channels=5) if kind is Shared4Conv1FCBBoxHead else {}
    roi_head = build_roi_head(StandardRoIHead, dict(type=kind.__name__, **options))
    head = roi_head.bbox_head
    state, regions = copy.deepcopy(head.state_dict()), torch.randn(7, 6, 3, 4).double()
    expected = head(regions)
    for done in (2, 0):
        assert len(fuse_regions(roi_head)) == done
        for order in (torch.channels_last, torch.contiguous_format):
            torch.testing.assert_close(head(regions.contiguous(memory_format=order)), expected)
    for each in (head, copy.deepcopy(head)):
        with pytest.raises(FusedError, match=r'cannot load weights: load them first'):
            each.load_state_dict(state)


@torch.no_grad()
def test_viewing_heads_get_default_format() -> None:
    box_head = dict(type='DoubleConvFCBBoxHead', num_convs=1, num_fcs=1, conv_out_channels=8)
    roi_head = build_roi_head(DoubleHeadRoIHead, box_head, reg_roi_scale_factor=1.3)
    maps, rois = [torch.randn(2, 6, 30, 40).double()], draw_regions(9, 120, 160)
    expected = roi_head._bbox_forward(maps, rois)
    assert fuse_regions(roi_head) == ['RoI extractors sum pixels of channels-last maps (1)']
    torch.testing.assert_close(roi_head._bbox_forward(maps, rois), expected)
    assert find_modules_in_default_order(nn.Sequential(roi_head)) == set(roi_head.modules())


def test_rpn_without_nms_is_unchanged() -> None:
    with DefaultScope.overwrite_default_scope('mmdet'):
        head = RPNHead(in_channels=4, test_cfg=ConfigDict(nms=None))
    assert fuse_regions(head) == [] and head.test_cfg.nms is None


def predict_masks(head: nn.Module, masks: Tensor, boxes: Tensor, meta: dict, threshold: float,
                  **options: bool) -> tuple[Tensor, Tensor]:
    boxes, labels = boxes.clone(), torch.arange(len(boxes)) % head.num_classes
    test_cfg = ConfigDict(mask_thr_binary=threshold)
    found = head._predict_by_feat_single(masks, boxes, labels, meta, test_cfg, **options)
    return found, boxes


@pytest.mark.parametrize('options', [{}, dict(rescale=True), dict(activate_map=True)])
@pytest.mark.parametrize('agnostic', [False, True])
def test_pasted_masks_equal_mmdet(agnostic: bool, options: dict) -> None:
    torch.manual_seed(0)
    plain = FCNMaskHead(num_convs=0, in_channels=2, num_classes=3, class_agnostic=agnostic)
    parent = nn.Sequential(copy.deepcopy(plain))
    assert fuse_regions(parent) == ['mask heads paste each mask in the region of its box (1)']
    fused, = parent
    meta = dict(scale_factor=(0.5, 0.75), ori_shape=(61, 83))
    boxes = draw_regions(25, 45, 41)[:, 1:].float().clamp_min(0)
    boxes[2] = torch.tensor([30.5, 20.5, 30.5, 20.5])
    masks = torch.randn(25, 1 if agnostic else 3, 14, 14)
    for threshold in (0.5, 0., -1.):
        expected, rescaled = predict_masks(plain, masks, boxes, meta, threshold, **options)
        found, moved = predict_masks(fused, masks, boxes, meta, threshold, **options)
        assert found.dtype == expected.dtype and moved.equal(rescaled)
        if threshold:
            difference = (found.int() - expected.int()).abs()
            assert difference.max() <= 1 and difference.sum() <= 2  # at the threshold
        assert found.any()


def build_model(head: str) -> nn.Module:
    torch.manual_seed(0)
    cfg = read_config(next(ROOT.glob(f'configs/{head}/*_slim_shapes.py')))
    model = MODELS.build(cfg.model)
    model.init_weights()
    for name, value in model.state_dict().items():
        if name.endswith(('fc_cls.weight', 'fc_reg.weight', 'conv_logits.weight')):
            value.normal_(std=0.1)
    model.roi_head.test_cfg.score_thr = 0.
    return model.eval()


def predict(model: nn.Module, size: tuple[int, int] = (96, 160)) -> list[DetDataSample]:
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    meta = dict(img_shape=size, batch_input_shape=size, scale_factor=(0.8, 0.75))
    ori_shape = (int(size[0] / 0.75), int(size[1] / 0.8))
    samples = [DetDataSample(metainfo=dict(meta, ori_shape=ori_shape)) for _ in images]
    with torch.no_grad():
        return model(images, samples, mode='predict')


def features(found: InstanceData) -> Tensor:
    """Return box, label and score of each object ``(n, 6)`` in comparable units."""
    return torch.cat((found.bboxes, 10 * found.labels[:, None], 10 * found.scores[:, None]),
                     1).double()


@pytest.mark.slow
@pytest.mark.parametrize('head',
                         ['mask_rcnn', 'cascade_mask_rcnn', 'mean scores', 'faster_rcnn', 'vitdet'])
def test_fused_detectors(head: str) -> None:
    model = build_model('cascade_mask_rcnn' if head == 'mean scores' else head)
    if head == 'mean scores':
        model.roi_head.__class__ = MeanScoreCascadeRoIHead
    expected = predict(model)
    done = fuse_regions(model)
    assert len(done) == (3 if head == 'faster_rcnn' else 5)
    assert not fuse_regions(model)
    for ours, plain in zip(predict(model), expected, strict=True):
        found, wanted = ours.pred_instances, plain.pred_instances
        assert len(found) == len(wanted) == 100 and found.keys() == wanted.keys()
        distance, match = torch.cdist(features(wanted), features(found)).min(1)
        same = distance < 1e-2  # rounding may let a box take another's place
        assert same.sum() >= 95
        if 'masks' in found:
            wrong = found.masks[match] != wanted.masks
            assert wanted.masks.any() and wrong[same].sum() <= 20
    with torch.autocast('cpu', torch.bfloat16):
        halves = [sample.pred_instances for sample in predict(model)]
    assert [half.keys() for half in halves] == [s.pred_instances.keys() for s in expected]
    assert all(half.scores.isfinite().all() and len(half) == 100 for half in halves)
    model.roi_head.test_cfg.score_thr = 1.
    assert [len(sample.pred_instances) for sample in predict(model)] == [0, 0]


def test_hooked_and_other_modules_are_unchanged() -> None:
    model = nn.ModuleList(
        [SingleRoIExtractor(LAYER, 2, [4]),
         FCNMaskHead(num_convs=0, in_channels=2)])
    for part in model:
        part.register_forward_hook(lambda *_: None)
    assert fuse_regions(model) == [] == fuse_regions(nn.Linear(2, 2))
    assert not isinstance(model[0], BagRoIExtractor) and not isinstance(model[1], ClassMaskHead)


@pytest.mark.parametrize('size', [(7, 9), (1, 5), (64, 3), (0, 4)])
def test_run_lengths_equal_mmdet(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    masks = rng.random((40, *size)) < rng.random((40, 1, 1))
    masks[0], masks[1] = False, True
    masks[2:20, :rng.integers(size[0] + 1)] = False
    masks[10:30, :, rng.integers(size[1]):] = False
    masks[5:25, rng.integers(size[0] + 1):] = False
    if size[0]:
        assert encode_masks(masks) == encode_mask_results(masks)
    assert encode_masks(masks[:0]) == []


def test_metrics_encode_equally() -> None:
    metric = CocoMetric(metric=['bbox', 'segm'], format_only=True, outfile_prefix='unused')
    plain = copy.deepcopy(metric)
    encode_masks_for(metric)
    masks = torch.rand(3, 20, 30) > 0.5
    shared = dict(scores=torch.rand(3), labels=torch.zeros(3).long(), bboxes=torch.rand(3, 4))
    samples = [
        dict(img_id=1, ori_shape=(20, 30), instances=[], pred_instances={
            **shared,
            **masked
        }) for masked in (dict(masks=masks), {})
    ]
    for each in (metric, plain):
        each.process({}, samples)
    assert samples[0]['pred_instances']['masks'] is masks
    ours, theirs = (each.results[0][1]['masks'] for each in (metric, plain))
    assert ours == theirs and 'masks' not in metric.results[1][1]
