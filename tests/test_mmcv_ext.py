"""tools/mmcv_ext gives the results of mmcv's compiled operators."""
from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import mmcv.ops
import numpy as np
import pytest
import torch
from conftest import run_python
from helpers import mmcv_cases as drawn
from helpers.make_mmcv_fixtures import FIXTURES
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from torch import Tensor
from torch.nn import functional as F

from colonnade.tools import mmcv_ext

TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def operator_modules() -> Iterator[ModuleType]:
    """mmcv's modules that call the extension."""
    for info in pkgutil.iter_modules(mmcv.ops.__path__, 'mmcv.ops.'):
        module = importlib.import_module(info.name)
        if hasattr(module, 'ext_module'):
            yield module


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make mmcv call Colonnade's extension, whichever is installed."""
    for module in operator_modules():
        monkeypatch.setattr(module, 'ext_module', mmcv_ext)


def check_close(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        tolerance = TOLERANCES.get(one.dtype, 0)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('name', drawn.cases())
def test_matches_compiled_mmcv(name: str) -> None:
    with np.load(FIXTURES) as stored:
        keys = [key for key in stored.files if key.startswith(f'{name}/')]
        expected = [torch.from_numpy(stored[key]) for key in keys]
    check_close(drawn.cases()[name](), expected)


def test_every_stored_result_is_compared() -> None:
    with np.load(FIXTURES) as stored:
        assert {key.split('/')[0] for key in stored.files} == set(drawn.cases())


@pytest.mark.gpu
@pytest.mark.parametrize('name', drawn.cases() | drawn.gpu_cases())
def test_gpu_matches_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = (drawn.cases() | drawn.gpu_cases())[name]
    expected = case()
    monkeypatch.setattr(drawn, 'DEVICE', 'cuda')
    found = case()
    assert all(tensor.is_cuda for tensor in found)
    for one, other in zip(found, expected, strict=True):
        tolerance = max(TOLERANCES.get(one.dtype, 0), 1e-4)
        torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('seed', range(8))
@pytest.mark.parametrize('aligned', [False, True])
def test_gradient_of_small_maps_equals_torchvision(seed: int, aligned: bool) -> None:
    """RoIs lie partly or fully outside, are empty, or belong to few images."""
    torch.manual_seed(seed)
    maps = torch.empty(3, 5, *torch.randint(1, 40, (2, )), dtype=torch.float64)
    size = torch.tensor(maps.shape[:1:-1])  # width, height
    corners = (torch.rand(9, 2, 2, dtype=torch.float64) * 3 - 1) * size * 4
    rois = torch.cat((torch.randint(3, (9, 1)), corners.amin(1), corners.amax(1)), dim=1)
    rois[0, 3:] = rois[0, 1:3]
    gradient = torch.randn(9, 5, 3, 4, dtype=torch.float64)
    shape = dict(aligned_height=3, aligned_width=4)
    for ratio in (0, 2):
        for boxes in (rois, rois[:0]):
            empty = torch.empty(0)
            mmcv_ext.roi_align_backward(gradient[:len(boxes)], boxes, empty, empty, maps, **shape,
                                        spatial_scale=0.25, sampling_ratio=ratio, pool_mode=1,
                                        aligned=aligned)  # yapf: disable
            expected = torch.ops.torchvision._roi_align_backward(gradient[:len(boxes)], boxes, 0.25,
                                                                 3, 4, *maps.shape, ratio, aligned)
            torch.testing.assert_close(maps, expected)


def test_channels_last() -> None:
    plain = drawn.roi_align(0, 9, True, 2, torch.float32)
    check_close(drawn.roi_align(0, 9, True, 2, torch.float32, torch.channels_last), plain)


@pytest.mark.parametrize('case', [
    partial(drawn.roi_align, 0, 9, True, 2),
    partial(drawn.roi_pool, 0, 9),
    partial(drawn.focal_loss, 'sigmoid', 9, 2., True),
    partial(drawn.ms_deform_attn, 0, 2, 9)
])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_rounding(case: Callable[..., list[Tensor]], dtype: torch.dtype,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    run = drawn.with_gradients

    def check(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
        half, single = run(function, *inputs), run(function, *(x.float() for x in inputs))
        assert all(tensor.dtype == dtype for tensor in half)
        check_close(half, [tensor.to(dtype) for tensor in single])
        return half

    monkeypatch.setattr(drawn, 'with_gradients', check)
    case(dtype=dtype)


def pool_by_hand(maps: Tensor, rois: Tensor, size: tuple[int, int], scale: float) -> Tensor:
    """RoIPool cell by cell, ``(k, C, h, w)``, as mmcv's kernel has it."""
    out = maps.new_zeros(len(rois), maps.shape[1], *size) + 0 * maps.sum()
    for k, (image, *box) in enumerate(rois.tolist()):
        left, top, right, bottom = (
            np.float32(edge) * scale for edge in (*box[:2], box[2] + 1, box[3] + 1))
        for y in range(size[0]):
            rows = cell(top, bottom, y, size[0], maps.shape[2])
            for x in range(size[1]):
                found = maps[int(image), :, rows, cell(left, right, x, size[1], maps.shape[3])]
                if found.numel() and right > left and bottom > top:
                    out[k, :, y, x] = found.amax((1, 2))
    return out


def cell(first: float, last: float, index: int, count: int, size: int) -> slice:
    step = (last - first) / count
    edges = np.floor(index * step + first), np.ceil((index + 1) * step + first)
    return slice(*(int(min(max(edge, 0), size)) for edge in edges))


@pytest.mark.parametrize('num', [0, 1, 40])
def test_roi_pool(num: int) -> None:
    rois = drawn.regions(num, num)
    rois[::5, 3] = rois[::5, 1] - 3  # turned inside out
    maps = drawn.draw(num, *drawn.MAPS).float()
    check_close(
        drawn.with_gradients(lambda maps: mmcv.ops.roi_pool(maps, rois, (3, 2), 0.25), maps),
        drawn.with_gradients(lambda maps: pool_by_hand(maps, rois, (3, 2), 0.25), maps))


def sigmoid_by_hand(logits: Tensor, target: Tensor, gamma: float, weight: Tensor | None) -> Tensor:
    right = F.one_hot(target, 6)[:, :5].bool()
    p = torch.where(right, logits.sigmoid(), 1 - logits.sigmoid())
    loss = -torch.where(right, 0.25, 0.75) * (1 - p)**gamma * p.log()
    return loss if weight is None else loss * weight[target][:, None]


def softmax_by_hand(logits: Tensor, target: Tensor, gamma: float, weight: Tensor | None) -> Tensor:
    p = logits.softmax(1)[torch.arange(len(target)), target]
    return (-0.25 * (1 - p)**gamma * p.log() * (1 if weight is None else weight[target])).sum()


@pytest.mark.parametrize(('kind', 'by_hand'), [('sigmoid', sigmoid_by_hand),
                                               ('softmax', softmax_by_hand)])
@pytest.mark.parametrize('gamma', [0., 0.5, 2.])
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('num', [0, 1, 30])
def test_focal_loss(kind: str, by_hand: Callable[..., Tensor], gamma: float, weighted: bool,
                    num: int) -> None:
    weight = drawn.draw(2, 5).abs() if weighted else None
    target = drawn.draw_integers(1, 6 if kind == 'sigmoid' and not weighted else 5, num)
    check_close(
        drawn.focal_loss(kind, num, gamma, weighted, torch.float64),
        drawn.with_gradients(lambda logits: by_hand(logits, target, gamma, weight),
                             3 * drawn.draw(0, num, 5)))


@pytest.mark.parametrize('kind', ['sigmoid', 'softmax'])
@pytest.mark.parametrize('gamma', [0., 0.5, 2.])
@pytest.mark.parametrize('target', [0, 1])
def test_focal_loss_of_confident_predictions(kind: str, gamma: float, target: int) -> None:
    targets = torch.full((2, ), target)
    operator = getattr(mmcv.ops, f'{kind}_focal_loss')
    found = drawn.with_gradients(lambda x: operator(x, targets, gamma, 0.25, None, 'sum'),
                                 torch.tensor([[-300., 300.], [300., -300.]]))
    assert all(tensor.isfinite().all() for tensor in found)


def test_focal_loss_without_class() -> None:
    logits, weight = torch.randn(2, 3), torch.ones(3)
    for background in (-1, 3):
        target = torch.full((2, ), background)
        loss = mmcv.ops.sigmoid_focal_loss(logits, target, 2., 0.25, weight, 'none')
        p = logits.sigmoid()
        torch.testing.assert_close(loss, -0.75 * p**2 * (1 - p).log())
    ignored = torch.full((2, ), -1)
    for tensor in drawn.with_gradients(
            lambda x: mmcv.ops.softmax_focal_loss(x, ignored, 2., 0.25, weight, 'sum'), logits):
        assert not tensor.any()


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize(('batch', 'queries'), [(1, 1), (2, 9), (3, 0)])
def test_ms_deform_attn(seed: int, batch: int, queries: int) -> None:
    sizes, *tensors = drawn.attention_inputs(seed, batch, queries)
    check_close(
        drawn.ms_deform_attn(seed, batch, queries, torch.float64),
        drawn.with_gradients(
            lambda value, *leaves: multi_scale_deformable_attn_pytorch(value, sizes, *leaves),
            *tensors))


def test_missing_operators() -> None:
    boxes = torch.rand(3, 5)
    with pytest.raises(NotImplementedError, match="no operator nms_rotated, .* COMPILED_MMCV=1"):
        mmcv.ops.nms_rotated(boxes, boxes[:, 0], 0.5)
    layer = mmcv.ops.RoIAlign(2, pool_mode='max')
    with pytest.raises(NotImplementedError, match="no operator roi_align with pool_mode='max'"):
        layer(torch.rand(1, 1, 4, 4), torch.zeros(1, 5))


def test_module_attributes() -> None:
    for name in ('__wrapped__', '_anything'):
        assert not hasattr(mmcv_ext, name)


@pytest.mark.slow
def test_mmcv_names_are_defined() -> None:
    run_python(
        '-c', 'import sys; from colonnade.tools import mmcv_ext; '
        'sys.modules["mmcv._ext"] = mmcv_ext; import mmcv.ops')


def test_mmcv_version_info() -> None:
    assert 'torchvision' in mmcv.ops.get_compiler_version()
    assert mmcv.ops.get_compiling_cuda_version().startswith('none')


def test_nms_with_float64_scores() -> None:
    boxes, scores = torch.tensor([[0., 0, 9, 9], [0, 0, 9, 8], [20, 20, 30, 30]]), torch.rand(3)
    for given in (scores.double(), scores.half()):
        _, kept = mmcv.ops.nms(boxes, given, 0.5)
        assert kept.tolist() == mmcv.ops.nms(boxes, given.float(), 0.5)[1].tolist()
