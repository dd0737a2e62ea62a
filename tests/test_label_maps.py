"""Label maps that are made some rows at a time: those of mmseg."""
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


def segmenter(**test_cfg: Any) -> nn.Module:
    """A Semantic FPN whose classes differ from pixel to pixel."""
    torch.manual_seed(0)
    cfg = read_config(config('sem_fpn')).model
    cfg.test_cfg.update(test_cfg)
    model = MODELS.build(cfg)
    model.init_weights()
    nn.init.normal_(model.decode_head.conv_seg.weight, std=10.)
    return model.eval()


def sample(size: tuple[int, int], **meta: Any) -> SegDataSample:
    """An image of a size whose network's input is 64 x 96."""
    about = dict(ori_shape=size, img_shape=(64, 96), pad_shape=(64, 96))
    return SegDataSample(metainfo={**about, **meta})


@torch.no_grad()
def answers(model: nn.Module, images: Tensor, *samples: SegDataSample) -> list[Tensor]:
    found = model(images, [one.clone() for one in samples], mode='predict')
    return [one.pred_sem_seg.data for one in found]


@pytest.mark.parametrize('samples, test_cfg', [
    ([sample((64, 96))], {}),
    ([sample((101, 67))], {}),
    ([sample((31, 200)), sample((31, 200))], {}),
    ([sample((40, 40), img_padding_size=[0, 13, 0, 7])], {}),
    ([sample((50, 77))], dict(mode='slide', crop_size=(64, 64), stride=(32, 32))),
], ids=['same', 'odd', 'two', 'padded', 'slide'])  # yapf: disable
def test_labels_are_those_of_mmseg(samples: list[SegDataSample], test_cfg: dict,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_maps, 'BLOCK', 2000)  # some rows at a time
    model, images = segmenter(**test_cfg), torch.randn(len(samples), 3, 64, 96)
    expected = answers(model, images, *samples)
    assert fuse_label_maps(model) and not fuse_label_maps(model)
    for ours, theirs in zip(answers(model, images, *samples), expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert len(theirs.unique()) > 1
        assert (ours != theirs).float().mean() < 1e-3


@torch.no_grad()
def test_images_to_be_merged_keep_their_logits() -> None:
    model, images = segmenter(), torch.randn(1, 3, 64, 96)
    one = sample((50, 77), flip=True, flip_direction='horizontal')
    expected, = model(images, [one.clone()], mode='predict')
    fuse_label_maps(model)
    found, = model(images, [one.clone()], mode='predict')
    assert found.seg_logits.data.equal(expected.seg_logits.data)
    alone, = model(images, mode='predict')
    assert alone.seg_logits.data.shape == (4, 64, 96)


def test_fused_segmenters_answer_label_maps_too() -> None:
    model = segmenter()
    fuse(model)
    assert fuse_label_maps(model)
    found, = model(torch.randn(1, 3, 64, 96), [sample((50, 77))], mode='predict')
    assert found.pred_sem_seg.data.shape == (1, 50, 77) and 'seg_logits' not in found


def test_heads_of_their_own_are_left_alone() -> None:
    model = segmenter()
    model.decode_head.predict_by_feat = lambda logits, metas: logits
    assert not fuse_label_maps(model) and not can_skip_full_resolution(model)
    assert 'partial' not in str(model.decode_head.predict_by_feat)
    assert not fuse_label_maps(nn.Linear(2, 2))


@torch.no_grad()
def test_windows_may_be_asked_for_later() -> None:
    """mmseg makes their label maps: its logits have their size already."""
    model, images = segmenter(), torch.randn(1, 3, 64, 96)
    twin = copy.deepcopy(model)
    assert fuse_label_maps(model) and can_skip_full_resolution(model)
    for one in (model, twin):
        one.test_cfg.update(mode='slide', crop_size=(64, 64), stride=(32, 32))
    assert not can_skip_full_resolution(model)
    found, expected = (one(images, [sample((50, 77))], mode='predict')[0] for one in (model, twin))
    assert found.seg_logits.data.equal(expected.seg_logits.data)


@pytest.mark.parametrize('size', [(6, 7), (6, 30), (20, 7), (20, 30)])
def test_axes_that_keep_their_size(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_maps, 'BLOCK', 2 * 4 * size[1])
    logits = torch.randn(4, 6, 7)
    matrices = [label_maps.build_resizing_matrix(before, after, 0, after, after, False)
                for before, after in zip(logits.shape[1:], size, strict=True)]  # yapf: disable
    for matrix, before, after in zip(matrices, logits.shape[1:], size, strict=True):
        assert (matrix is None) == (before == after)
    expected = F.interpolate(logits[None], size, mode='bilinear').argmax(1)
    assert label_maps.find_largest(logits, *matrices).equal(expected)


def test_half_precision_ends_at_the_head() -> None:
    logits, rows, columns = torch.randn(4, 6, 7), torch.rand(20, 6), torch.rand(30, 7)
    expected = label_maps.find_largest(logits, rows, columns)
    with torch.autocast('cpu', torch.bfloat16):
        assert label_maps.find_largest(logits, rows, columns).equal(expected)


def test_calls_do_not_share_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes and goes, under autocast, while another is inside: as in two threads."""

    def come_and_go(*args: Any, **kwargs: Any) -> Tensor:
        monkeypatch.setattr(torch, 'empty', empty)
        with torch.autocast('cpu', torch.bfloat16):
            label_maps.find_largest(*arguments)
        return empty(*args, **kwargs)

    empty = torch.empty
    arguments = torch.randn(4, 6, 7), torch.rand(20, 6), torch.rand(30, 7)
    monkeypatch.setattr(torch, 'empty', come_and_go)
    label_maps.find_largest(*arguments)
    assert not torch.is_autocast_enabled('cpu')


class SavingHook(Hook):
    """A user's, which may read logits."""


class SavingVisualizer(SegLocalVisualizer):
    """As :class:`SavingHook`."""


@pytest.mark.parametrize('options', [
    dict(custom_hooks=[dict(type=SavingHook)]),
    dict(custom_hooks=[SavingHook()]),
    {'default_hooks.visualization': dict(type=SavingHook)},
    dict(visualizer=dict(type=SavingVisualizer)),
    dict(test_evaluator=dict(type='CityscapesMetric')),
])  # yapf: disable
def test_logits_stay_for_those_who_may_read_them(options: dict[str, Any]) -> None:
    cfg = read_config(config('sem_fpn'))
    with DefaultScope.overwrite_default_scope('mmseg'):
        assert reads_labels_alone(cfg)
        for key, value in options.items():
            folder, _, name = key.rpartition('.')
            (cfg[folder] if folder else cfg)[name] = value
        assert not reads_labels_alone(cfg)
