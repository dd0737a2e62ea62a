"""The neck contract."""
from __future__ import annotations

import pytest
import torch
from mmdet.models.necks import FPN
from mmengine.registry import MODELS
from torch import Tensor, nn

from colonnade.necks import ColumnarPyramid, SimplePyramid

SIZES = [(64, 64), (64, 96), (75, 101), (16, 16)]


def maps_of(size: tuple[int, int], stride: int, channels: int = 8) -> list[Tensor]:
    grid = [-(-s // stride) for s in size]
    return [torch.randn(2, channels, *grid, requires_grad=True) for _ in range(4)]


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('stride, out_strides', [(8, (4, 8, 16, 32)), (16, (4, 8, 16, 32)),
                                                 (14, (3.5, 7, 14, 28))])
def test_levels_have_their_strides(stride: int, out_strides: tuple[float, ...],
                                   size: tuple[int, int]) -> None:
    maps, neck = maps_of(size, stride), ColumnarPyramid(8, stride, out_strides)
    assert [name for name, _ in neck.named_children()
            ] == [f'stride{out_stride}'.replace('.', '_') for out_stride in out_strides]
    levels = neck(maps)
    assert isinstance(levels, tuple)
    for level, out_stride in zip(levels, out_strides, strict=True):
        expected = [max(1, int(side * stride / out_stride)) for side in maps[0].shape[-2:]]
        assert list(level.shape) == [2, 8, *expected]


@pytest.mark.parametrize('fpn', [None, dict(type='mmdet.FPN', out_channels=6, num_outs=5)])
@pytest.mark.parametrize('stride', [8, 16])
def test_an_empty_batch_gives_empty_levels(stride: int, fpn: dict | None) -> None:
    neck = ColumnarPyramid(8, stride, fpn=fpn).eval()
    maps = maps_of((75, 101), stride)
    levels = neck([m[:0] for m in maps])
    assert [level.shape for level in levels] == [level[:0].shape for level in neck(maps)]
    sum(level.sum() for level in levels).backward()


def test_pooling_drops_an_odd_last_row_as_the_originals_do() -> None:
    x = torch.arange(25.).reshape(1, 1, 5, 5)
    coarse = ColumnarPyramid(1, 16)([x] * 4)[3]
    assert coarse.tolist() == [[[[6., 8.], [16., 18.]]]]


@pytest.mark.parametrize('stride, modules', [
    (16, dict(stride4=nn.Sequential, stride8=nn.ConvTranspose2d, stride16=nn.Identity)),
    (8, dict(stride4=nn.ConvTranspose2d, stride8=nn.Identity)),
])
def test_checkpoint_keys_name_the_level(stride: int, modules: dict) -> None:
    neck = ColumnarPyramid(8, stride)
    for name, kind in modules.items():
        assert type(getattr(neck, name)) is kind
    assert {key.split('.')[0]
            for key in neck.state_dict()
            } == {name
                  for name, kind in modules.items() if kind is not nn.Identity}


@pytest.mark.parametrize('stride', [8, 16])
@pytest.mark.parametrize('fpn', [None, dict(type='mmdet.FPN', out_channels=6, num_outs=5)])
def test_every_parameter_gets_a_gradient(stride: int, fpn: dict | None) -> None:
    maps = maps_of((75, 101), stride)
    neck = ColumnarPyramid(8, stride, fpn=fpn)
    sum(level.square().mean() for level in neck(maps)).backward()
    # the bias in front of a batch norm cancels
    without = [n for n, p in neck.named_parameters() if not p.grad.any() and n != 'stride4.0.bias']
    assert without == []
    assert all(m.grad.any() for m in maps)


def test_fpn_takes_its_widths_from_the_neck() -> None:
    neck = MODELS.build(
        dict(
            type='ColumnarPyramid',
            in_channels=8,
            stride=16,
            fpn=dict(type='mmdet.FPN', out_channels=6, num_outs=5)))
    assert type(neck.fpn) is FPN
    assert neck.fpn.in_channels == [8] * 4
    assert [tuple(level.shape[1:])
            for level in neck(maps_of((64, 64), 16))] == [(6, 16, 16), (6, 8, 8), (6, 4, 4),
                                                          (6, 2, 2), (6, 1, 1)]
    as_wide = ColumnarPyramid(8, 16, fpn=dict(type='mmdet.FPN', num_outs=4))
    assert as_wide.fpn.out_channels == 8


def test_norm_cfg() -> None:
    neck = ColumnarPyramid(8, 16, norm_cfg=dict(type='SyncBN'))
    assert isinstance(neck.stride4[1], nn.SyncBatchNorm)
    assert type(ColumnarPyramid(8, 16).stride4[1]) is nn.BatchNorm2d


@pytest.mark.parametrize('kwargs, message', [
    (dict(stride=7), r'stride 7 must be among \[1.75, 3.5, 7, 14, 28\], got 4'),
    (dict(out_strides=(2, 8)), r'must be among \[4, 8, 16, 32, 64\], got 2'),
    (dict(out_strides=(8, 4)), r'out_strides must not decrease, got \(8, 4\)'),
    (dict(out_strides=()), 'out_strides must not decrease'),
    (dict(fpn=dict(type='mmdet.FPN', in_channels=[8])), r'fpn must not have in_channels.*\[8\]'),
])
def test_wrong_arguments(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ColumnarPyramid(**{'in_channels': 8, 'stride': 16, **kwargs})


@pytest.mark.parametrize('number', [3, 5])
def test_wrong_number_of_maps(number: int) -> None:
    maps = (maps_of((64, 64), 16) * 2)[:number]
    with pytest.raises(ValueError, match=f'needs 4 maps .* got {number}: check out_indices'):
        ColumnarPyramid(8, 16)(maps)


@pytest.mark.parametrize('make', [ColumnarPyramid, SimplePyramid])
def test_prefix_tokens_beside_maps_are_refused(make: type) -> None:
    pairs = [(torch.zeros(1, 8, 4, 4), torch.zeros(1, 1, 8))] * 4
    with pytest.raises(ValueError, match='take maps, got a tuple: .*return_prefix_tokens'):
        make(8, 16)(pairs)
