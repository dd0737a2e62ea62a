"""Label maps computed in blocks of rows equal those of mmseg."""
from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conftest import config
from mmengine.hooks import Hook
from mmengine.registry import MODELS, DefaultScope
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.evaluation.testing import reads_labels_alone
from colonnade.models.fusion import fuse, label_maps
from colonnade.models.fusion.label_maps import can_skip_full_resolution, fuse_label_maps
from colonnade.settings.reading import read_config


def build_segmenter(**test_cfg: Any) -> nn.Module:
    """Build a Semantic FPN whose predictions vary between pixels."""
    torch.manual_seed(0)
    cfg = read_config(config('sem_fpn')).model
    cfg.test_cfg.update(test_cfg)
    model = MODELS.build(cfg)
    model.init_weights()
    nn.init.normal_(model.decode_head.conv_seg.weight, std=10.)
    return model.eval()


def make_sample(size: tuple[int, int], **meta: Any) -> SegDataSample:
    """Return the sample of an image of a size, with a network input of 64 x 96."""
    metainfo = dict(ori_shape=size, img_shape=(64, 96), pad_shape=(64, 96))
    return SegDataSample(metainfo={**metainfo, **meta})


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, *samples: SegDataSample) -> list[Tensor]:
    found = model(images, [one.clone() for one in samples], mode='predict')
    return [one.pred_sem_seg.data for one in found]


@pytest.mark.parametrize('samples, test_cfg', [
    ([make_sample((64, 96))], {}),
    ([make_sample((101, 67))], {}),
    ([make_sample((31, 200)), make_sample((31, 200))], {}),
    ([make_sample((40, 40), img_padding_size=[0, 13, 0, 7])], {}),
    ([make_sample((50, 77))], dict(mode='slide', crop_size=(64, 64), stride=(32, 32))),
], ids=['same', 'odd', 'two', 'padded', 'slide'])  # yapf: disable
def test_labels_equal_mmseg(samples: list[SegDataSample], test_cfg: dict,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_maps, 'BLOCK', 2000)  # some rows at a time
    model, images = build_segmenter(**test_cfg), torch.randn(len(samples), 3, 64, 96)
    expected = predict(model, images, *samples)
    assert fuse_label_maps(model) and not fuse_label_maps(model)
    for ours, theirs in zip(predict(model, images, *samples), expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert len(theirs.unique()) > 1
        assert (ours != theirs).float().mean() < 1e-3


@torch.no_grad()
def test_augmented_views_keep_logits() -> None:
    model, images = build_segmenter(), torch.randn(1, 3, 64, 96)
    one = make_sample((50, 77), flip=True, flip_direction='horizontal')
    expected, = model(images, [one.clone()], mode='predict')
    fuse_label_maps(model)
    found, = model(images, [one.clone()], mode='predict')
    assert found.seg_logits.data.equal(expected.seg_logits.data)
    alone, = model(images, mode='predict')
    assert alone.seg_logits.data.shape == (4, 64, 96)


def test_fused_segmenter_returns_label_maps() -> None:
    model = build_segmenter()
    fuse(model)
    assert fuse_label_maps(model)
    found, = model(torch.randn(1, 3, 64, 96), [make_sample((50, 77))], mode='predict')
    assert found.pred_sem_seg.data.shape == (1, 50, 77) and 'seg_logits' not in found


def test_custom_heads_are_not_fused() -> None:
    model = build_segmenter()
    model.decode_head.predict_by_feat = lambda logits, metas: logits
    assert not fuse_label_maps(model) and not can_skip_full_resolution(model)
    assert 'partial' not in str(model.decode_head.predict_by_feat)
    assert not fuse_label_maps(nn.Linear(2, 2))


@torch.no_grad()
def test_sliding_windows_can_be_enabled_later() -> None:
    """mmseg computes their label maps, because its logits have the full size already."""
    model, images = build_segmenter(), torch.randn(1, 3, 64, 96)
    twin = copy.deepcopy(model)
    assert fuse_label_maps(model) and can_skip_full_resolution(model)
    for one in (model, twin):
        one.test_cfg.update(mode='slide', crop_size=(64, 64), stride=(32, 32))
    assert not can_skip_full_resolution(model)
    found, expected = (
        one(images, [make_sample((50, 77))], mode='predict')[0] for one in (model, twin))
    assert found.seg_logits.data.equal(expected.seg_logits.data)


@pytest.mark.parametrize('size', [(6, 7), (6, 30), (20, 7), (20, 30)])
def test_axes_with_unchanged_size(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_maps, 'BLOCK', 2 * 4 * size[1])
    logits = torch.randn(4, 6, 7)
    matrices = [label_maps.resizing_matrix(before, after, 0, after, after, False)
                for before, after in zip(logits.shape[1:], size, strict=True)]  # yapf: disable
    for matrix, before, after in zip(matrices, logits.shape[1:], size, strict=True):
        assert (matrix is None) == (before == after)
    expected = F.interpolate(logits[None], size, mode='bilinear').argmax(1)
    assert label_maps.find_largest(logits, *matrices).equal(expected)


def test_label_maps_ignore_autocast() -> None:
    logits, rows, columns = torch.randn(4, 6, 7), torch.rand(20, 6), torch.rand(30, 7)
    expected = label_maps.find_largest(logits, rows, columns)
    with torch.autocast('cpu', torch.bfloat16):
        assert label_maps.find_largest(logits, rows, columns).equal(expected)


def test_concurrent_calls_do_not_share_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call under autocast starts and ends during another one, as in two threads."""

    def call_during_other(*args: Any, **kwargs: Any) -> Tensor:
        monkeypatch.setattr(torch, 'empty', empty)
        with torch.autocast('cpu', torch.bfloat16):
            label_maps.find_largest(*arguments)
        return empty(*args, **kwargs)

    empty = torch.empty
    arguments = torch.randn(4, 6, 7), torch.rand(20, 6), torch.rand(30, 7)
    monkeypatch.setattr(torch, 'empty', call_during_other)
    label_maps.find_largest(*arguments)
    assert not torch.is_autocast_enabled('cpu')


class SavingHook(Hook):
    """Custom hook, which may read logits."""


class SavingVisualizer(SegLocalVisualizer):
    """Custom visualizer, which may read logits."""


@pytest.mark.parametrize('options', [
    dict(custom_hooks=[dict(type=SavingHook)]),
    dict(custom_hooks=[SavingHook()]),
    {'default_hooks.visualization': dict(type=SavingHook)},
    dict(visualizer=dict(type=SavingVisualizer)),
    dict(test_evaluator=dict(type='CityscapesMetric')),
])  # yapf: disable
def test_logits_are_kept_for_custom_readers(options: dict[str, Any]) -> None:
    cfg = read_config(config('sem_fpn'))
    with DefaultScope.overwrite_default_scope('mmseg'):
        assert reads_labels_alone(cfg)
        for key, value in options.items():
            folder, _, name = key.rpartition('.')
            (cfg[folder] if folder else cfg)[name] = value
        assert not reads_labels_alone(cfg)
