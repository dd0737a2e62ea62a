"""ViTDet's simple feature pyramid: its outputs and its levels."""
from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import LAYOUTS, NO_WORKERS, SHORT, config
from helpers.backbones import ARCHS
from helpers.rounding import check_all_rounding, doubled
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from colonnade.backbones import ResMLP
from colonnade.backbones.kernels.memory_format import map_order
from colonnade.necks import SimplePyramid
from colonnade.weights.state_dicts import WeightsError

STRIDES = {8: (2, 4, 8, 16), 14: (3.5, 7, 14, 28), 16: (4, 8, 16, 32)}
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
@pytest.mark.parametrize('stride', STRIDES)
def test_values_and_gradients_are_the_papers(stride: int, grid: tuple[int, int]) -> None:
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
@pytest.mark.parametrize('stride', STRIDES)
def test_levels_have_their_strides(stride: int, grid: tuple[int, int]) -> None:
    neck = SimplePyramid(8, stride, out_channels=6)
    assert neck.out_strides == STRIDES[stride]
    maps = [torch.randn(2, 8, *grid) for _ in range(4)]
    levels = neck(maps)
    assert isinstance(levels, tuple) and len(levels) == 5
    for level, out_stride in zip(levels[:4], neck.out_strides, strict=True):
        expected = [max(1, int(size * stride / out_stride)) for size in grid]
        assert list(level.shape) == [2, 6, *expected]
        assert level.is_contiguous(memory_format=map_order(level))
    assert torch.equal(levels[4], levels[3][..., ::2, ::2])
    assert all(map(torch.equal, levels, neck(maps[3:])))  # the last map alone counts


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


def test_an_empty_batch_gives_empty_levels() -> None:
    neck, x = SimplePyramid(8, 16), torch.randn(1, 8, 5, 7)
    levels = neck([x[:0]])
    assert [level.shape for level in levels] == [level[:0].shape for level in neck([x])]
    sum(level.sum() for level in levels).backward()


def test_levels_are_compiled_once_for_all_sizes() -> None:
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


@pytest.mark.parametrize('kwargs, message', [
    (dict(out_strides=(2, 8)), r'must be among \[4, 8, 16, 32, 64\], got 2'),
    (dict(out_strides=()), 'out_strides must not decrease'),
    (dict(num_outs=3), 'num_outs must be at least 4, the number of out_strides, got 3'),
    (dict(in_channels=10), 'in_channels must be a multiple of 4, got 10'),
])
def test_wrong_arguments(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimplePyramid(**{'in_channels': 8, 'stride': 16, **kwargs})


def test_loaded_whole_or_not_at_all() -> None:
    neck = SimplePyramid(8, 16)
    state = neck.state_dict()
    SimplePyramid(8, 16).load_state_dict(state)
    del state['stride8.0.bias']
    with pytest.raises(WeightsError, match='SimplePyramid .* not loaded[^$]*missing: stride8.0'):
        SimplePyramid(8, 16).load_state_dict(state, strict=False)


# in models

WIDTH, OUT = 32, 64


def vitdet_model(cfg: Config) -> dict:
    """Heads as detectron2's, for a config of the slim Mask R-CNN."""
    cfg.backbone = dict(type='ResMLP', arch=ARCHS[ResMLP] | dict(patch_size=16))
    cfg.neck = dict(type='SimplePyramid', in_channels=WIDTH, stride=16, out_channels=OUT)
    cfg.rpn_head.num_convs = 2
    cfg.roi_head.bbox_head.update(
        type='Shared4Conv1FCBBoxHead',
        conv_out_channels=OUT,
        fc_out_channels=1024,
        norm_cfg=dict(type='LN2d', eps=1e-6))
    cfg.roi_head.mask_head.update(num_convs=4, norm_cfg=dict(type='LN2d', eps=1e-6))
    return cfg


def test_in_mask_rcnn(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    cfg = Config.fromfile(config('mask_rcnn'))
    vitdet_model(cfg.model)
    cfg.dump(tmp_path / 'own.py')
    run_tool('train', tmp_path / 'own.py', '--data-root', shapes / LAYOUTS['mask_rcnn'],
             '--work-dir', tmp_path / 'run', *SHORT, *NO_WORKERS)
    assert (tmp_path / 'run/iter_2.pth').is_file()
