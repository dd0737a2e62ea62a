"""Calls of mmcv's operators on drawn tensors, whose results make_mmcv_fixtures.py stores."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mmcv.ops
import numpy as np
import torch
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
from torch import Tensor

Case = Callable[[], list[Tensor]]
MAPS = (2, 4, 8, 9)
DEVICE = 'cpu'
DTYPES = (torch.float32, torch.float64, torch.float16)


def draw(seed: int, *shape: int) -> Tensor:
    """Normal numbers, the same in every version of torch and NumPy."""
    return torch.tensor(np.random.RandomState(seed).standard_normal(shape), device=DEVICE)


def draw_integers(seed: int, limit: int, *shape: int) -> Tensor:
    """Return integers from 0 to ``limit - 1``."""
    return torch.tensor(np.random.RandomState(seed).randint(0, limit, shape), device=DEVICE)


def draw_boxes(seed: int, num: int, size: int = 50) -> Tensor:
    """``(num, 4)``, some of them beyond ``size``."""
    corner = draw(seed, num, 2).abs() * size / 3
    return torch.cat((corner, corner + draw(seed + 1, num, 2).abs() * size / 3 + 1), 1).float()


def regions(seed: int, num: int) -> Tensor:
    """``(num, 5)`` of images four times as large as the maps, some of them outside."""
    boxes = draw_boxes(seed, num) - 10
    return torch.cat((draw_integers(seed, MAPS[0], num, 1).float(), boxes), 1)


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result, and the gradients of a weighted sum of it."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    out.backward(draw(9, *out.shape).bfloat16().to(out))  # the same in every precision
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def nms(num: int, offset: int, threshold: float) -> list[Tensor]:
    """Boxes, scores and indices that stay, then the groups that nms_match finds."""
    boxes, scores = draw_boxes(num, num), draw(num, num).sigmoid().float()
    matched = mmcv.ops.nms_match(torch.cat((boxes, scores[:, None]), 1), threshold)
    return [*mmcv.ops.nms(boxes, scores, threshold, offset, 0.2, 40), *matched]


def batched_nms(num: int, limit: int) -> list[Tensor]:
    """Class by class if there are as many boxes as ``limit``."""
    settings = dict(type='nms', iou_threshold=0.3, split_thr=limit)
    return list(
        mmcv.ops.batched_nms(
            draw_boxes(num, num),
            draw(num, num).sigmoid().float(), draw_integers(num, 3, num), settings))


def soft_nms(num: int, offset: int, method: str, min_score: float) -> list[Tensor]:
    boxes, scores = draw_boxes(num, num), draw(num, num).sigmoid().float()
    return list(mmcv.ops.soft_nms(boxes, scores, 0.3, 0.5, min_score, method, offset))


def roi_align(seed: int,
              num: int,
              aligned: bool,
              samples: int,
              dtype: torch.dtype,
              memory: torch.memory_format = torch.contiguous_format) -> list[Tensor]:
    maps = draw(seed, *MAPS).to(dtype).contiguous(memory_format=memory)
    layer = mmcv.ops.RoIAlign((3, 2), 0.25, samples, 'avg', aligned)
    return with_gradients(lambda maps: layer(maps, regions(seed, num).to(dtype)), maps)


def deform_conv(seed: int,
                modulated: bool,
                dtype: torch.dtype = torch.float32,
                batch: int = 2) -> list[Tensor]:
    """Either version, its geometry drawn."""
    stride, padding, dilation, groups, deform_groups = (draw_integers(seed, 2, 5) + 1).tolist()
    kernel, channels = (3, 3) if seed % 2 else (3, 2), 4
    size = [(length + 2 * padding - dilation * (width - 1) - 1) // stride + 1
            for length, width in zip(MAPS[2:], kernel, strict=True)]
    points = deform_groups * kernel[0] * kernel[1]
    offsets = draw(seed + 1, batch, 2 * points, *size)
    if dtype == torch.float16:  # rounding must not move a point to other pixels
        offsets = offsets.round() + 0.25
    tensors = [draw(seed, batch, *MAPS[1:]), offsets]
    if modulated:
        tensors.append(draw(seed + 2, batch, points, *size).sigmoid())
    tensors.append(draw(seed + 3, channels, channels // groups, *kernel))
    if modulated and seed % 3:
        tensors.append(draw(seed + 4, channels))
    bias = [None] if modulated and not seed % 3 else []
    operator = mmcv.ops.modulated_deform_conv2d if modulated else mmcv.ops.deform_conv2d
    return with_gradients(
        lambda *leaves: operator(*leaves, *bias, stride, padding, dilation, groups, deform_groups),
        *(tensor.to(dtype) for tensor in tensors))


def roi_pool(seed: int, num: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return with_gradients(
        lambda maps: mmcv.ops.roi_pool(maps,
                                       regions(seed, num).to(dtype), (3, 2), 0.25),
        draw(seed, *MAPS).to(dtype))


def focal_loss(kind: str,
               num: int,
               gamma: float,
               weighted: bool,
               dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """``kind`` is sigmoid or softmax; targets of the former have a background."""
    weight = draw(2, 5).abs().to(dtype) if weighted else None
    target = draw_integers(1, 6 if kind == 'sigmoid' and not weighted else 5, num)
    operator = getattr(mmcv.ops, f'{kind}_focal_loss')
    # mmcv's softmax loss has no gradient for 'none'
    reduction = 'none' if kind == 'sigmoid' else 'sum'
    return with_gradients(lambda logits: operator(logits, target, gamma, 0.25, weight, reduction),
                          (3 * draw(0, num, 5)).to(dtype))


def attention_inputs(seed: int, batch: int, queries: int) -> tuple[Tensor, ...]:
    """Levels' sizes, then values, points (some outside) and weights in double precision."""
    sizes = draw_integers(seed, 6, 3, 2) + 1
    num = int(sizes.prod(1).sum())
    points = draw(seed + 1, batch, queries, 2, 3, 4, 2) / 2 + 0.5
    weights = draw(seed + 2, batch, queries, 2, 12).softmax(-1).unflatten(-1, (3, 4))
    return sizes, draw(seed, batch, num, 2, 5), points, weights


def ms_deform_attn(seed: int,
                   batch: int,
                   queries: int,
                   dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Run it as GPUs do."""
    sizes, *tensors = attention_inputs(seed, batch, queries)
    starts = sizes.prod(1).cumsum(0) - sizes.prod(1)
    operator = MultiScaleDeformableAttnFunction.apply
    return with_gradients(lambda value, *leaves: operator(value, sizes, starts, *leaves, 64),
                          *(tensor.to(dtype) for tensor in tensors))


def point_sample(seed: int, num: int) -> list[Tensor]:
    """Some points are outside; mmcv needs no extension for it."""
    return with_gradients(mmcv.ops.point_sample,
                          draw(seed, *MAPS).float(),
                          (draw(seed, MAPS[0], num, 2) / 2 + 0.5).float())


def gpu_cases() -> dict[str, Case]:
    """By name, what the compiled extension does on a GPU only."""
    found: dict[str, Case] = {}
    for num in (0, 1, 9):
        for kind in ('sigmoid', 'softmax'):
            for gamma, weighted in ((2., False), (0.5, True)):
                found[f'focal_loss-{kind}-{num}-{gamma}'] = partial(focal_loss, kind, num, gamma,
                                                                    weighted)
        found[f'roi_pool-{num}'] = partial(roi_pool, num, num)
        found[f'ms_deform_attn-{num}'] = partial(ms_deform_attn, num, 2 - num % 2, num)
    return found


def cases() -> dict[str, Case]:
    """By name, what the compiled extension does on a CPU."""
    found: dict[str, Case] = {}
    for num in (0, 1, 7, 70):
        for offset in (0, 1):
            for threshold in (0.3, 0.7):
                found[f'nms-{num}-{offset}-{threshold}'] = partial(nms, num, offset, threshold)
            for method in ('naive', 'linear', 'gaussian'):
                found[f'soft_nms-{num}-{offset}-{method}'] = partial(soft_nms, num, offset, method,
                                                                     0.05 if offset else 1e-3)
    for num in (1, 70):
        for limit in (20, 1000):
            found[f'batched_nms-{num}-{limit}'] = partial(batched_nms, num, limit)
    for num in (0, 1, 9):
        found[f'point_sample-{num}'] = partial(point_sample, num, num)
    for seed in range(8):
        aligned, samples, num = bool(seed % 2), seed // 2 % 2 * 2, (0, 1, 5, 9)[seed // 2]
        for dtype in DTYPES if seed > 5 else DTYPES[:1]:
            found[f'roi_align-{seed}-{dtype}'] = partial(roi_align, seed, num, aligned, samples,
                                                         dtype)
        for modulated in (False, True):
            for dtype in DTYPES if seed == 1 else DTYPES[:1]:
                found[f'deform_conv-{seed}-{modulated}-{dtype}'] = partial(
                    deform_conv, seed, modulated, dtype)
    return found
