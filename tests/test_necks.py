"""Pyramids: levels, names, arguments and numbers of the ViTDet paper."""
from __future__ import annotations

import copy

import pytest
import torch
from helpers.rounding import check_all_rounding, doubled
from mmdet.models.necks import FPN
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from colonnade.backbones.kernels.memory_format import get_map_order
from colonnade.necks import ColumnarPyramid, SimplePyramid
from colonnade.weights.state_dicts import WeightsError

SIZES = [(64, 64), (64, 96), (75, 101), (16, 16)]


def build_maps(size: tuple[int, int], stride: int, channels: int = 8) -> list[Tensor]:
    grid = [-(-s // stride) for s in size]
    return [torch.randn(2, channels, *grid, requires_grad=True) for _ in range(4)]


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('stride, out_strides', [(8, (4, 8, 16, 32)), (16, (4, 8, 16, 32)),
                                                 (14, (3.5, 7, 14, 28))])
def test_levels_have_strides(stride: int, out_strides: tuple[float, ...], size: tuple[int,
                                                                                      int]) -> None:
    maps, neck = build_maps(size, stride), ColumnarPyramid(8, stride, out_strides)
    assert [name for name, _ in neck.named_children()
            ] == [f'stride{out_stride}'.replace('.', '_') for out_stride in out_strides]
    levels = neck(maps)
    assert isinstance(levels, tuple)
    for level, out_stride in zip(levels, out_strides, strict=True):
        expected = [max(1, int(side * stride / out_stride)) for side in maps[0].shape[-2:]]
        assert list(level.shape) == [2, 8, *expected]


@pytest.mark.parametrize('fpn', [None, dict(type='mmdet.FPN', out_channels=6, num_outs=5)])
@pytest.mark.parametrize('stride', [8, 16])
def test_empty_batch(stride: int, fpn: dict | None) -> None:
    neck = ColumnarPyramid(8, stride, fpn=fpn).eval()
    maps = build_maps((75, 101), stride)
    levels = neck([m[:0] for m in maps])
    assert [level.shape for level in levels] == [level[:0].shape for level in neck(maps)]
    sum(level.sum() for level in levels).backward()
    simple = SimplePyramid(8, stride)
    assert [len(level) for level in simple(maps[:1])] == [2] * 5
    assert [len(level) for level in simple([maps[0][:0]])] == [0] * 5


def test_pooling_drops_odd_last_row() -> None:
    x = torch.arange(25.).reshape(1, 1, 5, 5)
    coarse = ColumnarPyramid(1, 16)([x] * 4)[3]
    assert coarse.tolist() == [[[[6., 8.], [16., 18.]]]]


@pytest.mark.parametrize('stride, modules', [
    (16, dict(stride4=nn.Sequential, stride8=nn.ConvTranspose2d, stride16=nn.Identity)),
    (8, dict(stride4=nn.ConvTranspose2d, stride8=nn.Identity)),
])
def test_checkpoint_keys_have_level_names(stride: int, modules: dict) -> None:
    neck = ColumnarPyramid(8, stride)
    for name, kind in modules.items():
        assert type(getattr(neck, name)) is kind
    assert {key.split('.')[0]
            for key in neck.state_dict()
            } == {name
                  for name, kind in modules.items() if kind is not nn.Identity}


@pytest.mark.parametrize('stride', [8, 16])
@pytest.mark.parametrize('fpn', [None, dict(type='mmdet.FPN', out_channels=6, num_outs=5)])
def test_all_parameters_get_gradients(stride: int, fpn: dict | None) -> None:
    maps = build_maps((75, 101), stride)
    neck = ColumnarPyramid(8, stride, fpn=fpn)
    sum(level.square().mean() for level in neck(maps)).backward()
    # the bias in front of a batch norm cancels
    without = [n for n, p in neck.named_parameters() if not p.grad.any() and n != 'stride4.0.bias']
    assert without == []
    assert all(m.grad.any() for m in maps)


def test_fpn_gets_widths_from_neck() -> None:
    neck = MODELS.build(
        dict(
            type='ColumnarPyramid',
            in_channels=8,
            stride=16,
            fpn=dict(type='mmdet.FPN', out_channels=6, num_outs=5)))
    assert type(neck.fpn) is FPN
    assert neck.fpn.in_channels == [8] * 4
    assert [tuple(level.shape[1:]) for level in neck(build_maps((64, 64), 16))] == [(6, 16, 16),
                                                                                    (6, 8, 8),
                                                                                    (6, 4, 4),
                                                                                    (6, 2, 2),
                                                                                    (6, 1, 1)]
    as_wide = ColumnarPyramid(8, 16, fpn=dict(type='mmdet.FPN', num_outs=4))
    assert as_wide.fpn.out_channels == 8


def test_norm_cfg() -> None:
    neck = ColumnarPyramid(8, 16, norm_cfg=dict(type='SyncBN'))
    assert isinstance(neck.stride4[1], nn.SyncBatchNorm)
    assert type(ColumnarPyramid(8, 16).stride4[1]) is nn.BatchNorm2d


@pytest.mark.parametrize('make, kwargs, message', [
    (ColumnarPyramid, dict(stride=7), r'stride 7 must be among \[1.75, 3.5, 7, 14, 28\], got 4'),
    (ColumnarPyramid, dict(out_strides=(2, 8)), r'must be among \[4, 8, 16, 32, 64\], got 2'),
    (ColumnarPyramid, dict(out_strides=(8, 4)), r'out_strides must not decrease, got \(8, 4\)'),
    (ColumnarPyramid, dict(out_strides=()), 'out_strides must not decrease'),
    (ColumnarPyramid, dict(fpn=dict(type='mmdet.FPN', in_channels=[8])),
     r'fpn must not set in_channels.*\[8\]'),
    (SimplePyramid, dict(out_strides=(2, 8)), r'must be among \[4, 8, 16, 32, 64\], got 2'),
    (SimplePyramid, dict(num_outs=3), 'num_outs must be at least 4, .* out_strides, got 3'),
    (SimplePyramid, dict(in_channels=10), 'in_channels must be a multiple of 4, got 10'),
])
def test_rejects_wrong_arguments(make: type, kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{'in_channels': 8, 'stride': 16, **kwargs})


@pytest.mark.parametrize('number', [3, 5])
def test_rejects_wrong_number_of_maps(number: int) -> None:
    maps = (build_maps((64, 64), 16) * 2)[:number]
    with pytest.raises(ValueError, match=f'needs 4 feature maps .* got {number}: check out_i'):
        ColumnarPyramid(8, 16)(maps)


@pytest.mark.parametrize('make', [ColumnarPyramid, SimplePyramid])
def test_rejects_prefix_tokens(make: type) -> None:
    pairs = [(torch.zeros(1, 8, 4, 4), torch.zeros(1, 1, 8))] * 4
    with pytest.raises(ValueError, match='need feature maps, got a tuple: .*return_prefix_tokens'):
        make(8, 16)(pairs)


SIMPLE_STRIDES = {8: (2, 4, 8, 16), 14: (3.5, 7, 14, 28), 16: (4, 8, 16, 32)}
GRIDS = [(4, 4), (5, 7), (1, 1), (1, 6)]


class ChannelNorm(nn.LayerNorm):
    """Over the channels of ``(B, C, H, W)``."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Published(nn.Module):
    """The pyramid as the paper describes it, of torch's layers."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        norm = [ChannelNorm(width // 2, eps=1e-6), nn.GELU()]
        to_half = nn.ConvTranspose2d(width, width // 2, 2, 2)
        to_quarter = nn.ConvTranspose2d(width // 2, width // 4, 2, 2)
        ways = [[to_half, *norm, to_quarter], [nn.ConvTranspose2d(width, width // 2, 2, 2)], [],
                [nn.MaxPool2d(2, 2)]]
        self.levels = nn.ModuleList()
        for way, narrow in zip(ways, (width // 4, width // 2, width, width), strict=True):
            self.levels.append(
                nn.Sequential(*way, nn.Conv2d(narrow, out, 1, bias=False),
                              ChannelNorm(out, eps=1e-6),
                              nn.Conv2d(out, out, 3, padding=1, bias=False),
                              ChannelNorm(out, eps=1e-6)))

    def forward(self, x: Tensor) -> list[Tensor]:
        levels = [level(x) for level in self.levels]
        return [*levels, levels[-1][..., ::2, ::2]]


def randomised(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize('grid', [(4, 4), (5, 7), (2, 3)])
@pytest.mark.parametrize('stride', SIMPLE_STRIDES)
def test_values_and_gradients_match_paper(stride: int, grid: tuple[int, int]) -> None:
    neck = randomised(SimplePyramid(8, stride, out_channels=6))
    published = Published(8, 6)
    for theirs, ours in zip(published.parameters(), neck.parameters(), strict=True):
        theirs.data = ours.data.clone()
    x, exact = torch.randn(2, 8, *grid), doubled(published)
    found = []
    for run in (neck, published, exact):
        image = x.clone().to(next(run.parameters()).dtype).requires_grad_()
        levels = run([image] if run is neck else image)
        sum((level.sin() * 0.1).sum() for level in levels).backward()
        found.append([*levels, image.grad, *(p.grad for p in run.parameters())])
    check_all_rounding(*found)


@pytest.mark.parametrize('grid', GRIDS)
@pytest.mark.parametrize('stride', SIMPLE_STRIDES)
def test_simple_levels_have_strides(stride: int, grid: tuple[int, int]) -> None:
    neck = SimplePyramid(8, stride, out_channels=6)
    assert neck.out_strides == SIMPLE_STRIDES[stride]
    maps = [torch.randn(2, 8, *grid) for _ in range(4)]
    levels = neck(maps)
    assert isinstance(levels, tuple) and len(levels) == 5
    for level, out_stride in zip(levels[:4], neck.out_strides, strict=True):
        expected = [max(1, int(size * stride / out_stride)) for size in grid]
        assert list(level.shape) == [2, 6, *expected]
        assert level.is_contiguous(memory_format=get_map_order(level))
    assert torch.equal(levels[4], levels[3][..., ::2, ::2])
    assert all(map(torch.equal, levels, neck(maps[3:])))  # only the last map is used


def test_names_and_settings() -> None:
    names = [name for name, _ in SimplePyramid(8, 14).named_children()]
    assert names == ['stride3_5', 'stride7', 'stride14', 'stride28']
    keys = set(SimplePyramid(8, 16).stride8.state_dict())
    assert keys == {
        '0.weight', '0.bias', '1.conv.weight', '1.norm.weight', '1.norm.bias', '2.conv.weight',
        '2.norm.weight', '2.norm.bias'
    }
    neck = MODELS.build(
        dict(
            type='SimplePyramid',
            in_channels=8,
            stride=16,
            out_channels=4,
            out_strides=(8, 64),
            num_outs=2,
            norm_cfg=dict(type='GN', num_groups=2)))
    assert [tuple(level.shape) for level in neck([torch.randn(1, 8, 9, 4)])] == [(1, 4, 18, 8),
                                                                                 (1, 4, 2, 1)]
    assert type(neck.stride64[2].norm) is nn.GroupNorm


def test_levels_compile_once() -> None:
    torch._dynamo.reset()
    counter, counts = CompileCounterWithBackend('eager'), set()
    plain = SimplePyramid(8, 16, 6)
    neck = copy.deepcopy(plain)
    neck.compile(backend=counter, dynamic=True, fullgraph=True)
    for grid in ((4, 6), (5, 7), (3, 8)):
        x = torch.randn(2, 8, *grid)
        check_all_rounding(neck([x]), plain([x]), doubled(plain)([x.double()]))
        counts.add(counter.frame_count)
    assert len(counts) == 1 and 0 not in counts


def test_incomplete_weights_are_rejected() -> None:
    neck = SimplePyramid(8, 16)
    state = neck.state_dict()
    SimplePyramid(8, 16).load_state_dict(state)
    del state['stride8.0.bias']
    with pytest.raises(WeightsError, match='SimplePyramid .* not loaded[^$]*missing: stride8.0'):
        SimplePyramid(8, 16).load_state_dict(state, strict=False)


WIDTH, OUT = 32, 64
