"""Query masks resized in chunks give mmdet's results."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.random_models import random_checkpoint
from mmdet.models.seg_heads import MaskFormerFusionHead
from mmengine.config import ConfigDict

from colonnade.inference.loading import load
from colonnade.inference.serving.service import compute_max_pixels
from colonnade.models.fusion import query_masks
from colonnade.models.replacement import copy_as

NUM_THINGS, NUM_STUFF, QUERIES = 3, 2, 40


def make_outputs(confidence: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return class logits ``(2, Q, K + 1)`` and smooth mask logits ``(2, Q, 48, 64)``."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, QUERIES, NUM_THINGS + NUM_STUFF + 1, generator=generator) * confidence
    masks = torch.randn(2, QUERIES, 4, 5, generator=generator) * 6
    return logits, torch.nn.functional.interpolate(masks, size=(48, 64), mode='bilinear')


@pytest.mark.parametrize('size', [(97, 130), (48, 64), (30, 41)])
@pytest.mark.parametrize('chunk', [1, 2**15, 2**24])
@pytest.mark.parametrize('settings', [
    dict(panoptic_on=True, iou_thr=0.05),
    dict(panoptic_on=True, iou_thr=0.05, filter_low_score=True, object_mask_thr=0.4),
    dict(panoptic_on=False, instance_on=True, max_per_image=30),
    dict(panoptic_on=True, instance_on=True, iou_thr=0.05)
])
@pytest.mark.parametrize('rescale', [True, False])
def test_results_equal_mmdet(settings: dict, chunk: int, size: tuple[int, int], rescale: bool,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_masks, 'CHUNK', chunk)
    head = MaskFormerFusionHead(NUM_THINGS, NUM_STUFF, test_cfg=ConfigDict(settings))
    chunked = copy_as(query_masks.ChunkedFusionHead, head)
    samples = [SimpleNamespace(metainfo=dict(img_shape=(40, 60), ori_shape=size))] * 2
    logits, masks = make_outputs(8)
    expected = head.predict(logits, masks, samples, rescale=rescale)
    actual = chunked.predict(logits, masks, samples, rescale=rescale)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.keys() == theirs.keys()
        if 'pan_results' in ours:
            segments = theirs['pan_results'].sem_seg
            assert len(segments.unique()) > 3  # with void
            assert ours['pan_results'].sem_seg.dtype == segments.dtype
            assert torch.equal(ours['pan_results'].sem_seg, segments)
        if 'ins_results' in ours:
            for name, value in theirs['ins_results'].items():
                torch.testing.assert_close(ours['ins_results'][name], value)


@pytest.mark.parametrize('settings', [dict(), dict(panoptic_on=False, instance_on=True)])
def test_no_objects(settings: dict) -> None:
    head = MaskFormerFusionHead(NUM_THINGS, NUM_STUFF, test_cfg=ConfigDict(settings))
    chunked = copy_as(query_masks.ChunkedFusionHead, head)
    samples = [SimpleNamespace(metainfo=dict(img_shape=(48, 64), ori_shape=(96, 128)))]
    logits, masks = make_outputs(0)
    logits[..., NUM_THINGS] += 50  # a class of stuff
    if not settings:
        logits[..., -1] += 100
    result, = chunked.predict(logits[:1], masks[:1], samples, rescale=True)
    expected, = head.predict(logits[:1], masks[:1], samples, rescale=True)
    if settings:
        assert result['ins_results'].masks.shape[1:] == (96, 128)
        assert len(result['ins_results']) == len(expected['ins_results'])
    else:
        assert (result['pan_results'].sem_seg == NUM_THINGS + NUM_STUFF).all()
        assert torch.equal(result['pan_results'].sem_seg, expected['pan_results'].sem_seg)


@pytest.mark.parametrize(
    'config', ['pmt/xcit_nano_12_p16_slim_shapes_panoptic', 'eomt/plain_vit_nano_12_slim_shapes'])
def test_fused_models_accept_large_images(config: str, tmp_path: Path) -> None:
    weights = random_checkpoint(config, tmp_path / 'a.pth')
    fused, plain = (load(config, weights, device='cpu', fuse=fuse) for fuse in (None, False))
    assert compute_max_pixels(plain) < compute_max_pixels(fused) == 20_000_000
