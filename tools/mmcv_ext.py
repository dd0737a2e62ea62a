"""mmcv's operators by torchvision's and torch's: ``mmcv._ext`` of the wheel of build_mmcv.py.

mmcv asks its compiled extension for operators by name and gives them the tensors to write to. Here
are those that detectors and segmenters use, for CPUs and GPUs, with gradients and in any precision.
Any other raises a NotImplementedError when it is called.

Shapes: ``n`` boxes ``(n, 4)`` as left, top, right, bottom; ``k`` regions ``(k, 5)``, the index of
their image first; maps ``(B, C, H, W)``. Formulas: mmcv/ops/csrc/common/cuda in mmcv 2.3.6.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torchvision  # registers its operators
from torch import Tensor
from torch.nn import functional as F

OPERATORS = torch.ops.torchvision
TINY = torch.finfo(torch.float32).tiny  # mmcv's focal losses take no logarithm of less
MISSING = ("mmcv's operator {} is not in this mmcv, which was built without a compiler. Install it "
           'with its compiled operators: "make env COMPILED_MMCV=1" in a clone of Colonnade, or '
           '"pip install --force-reinstall --no-deps --no-build-isolation --no-cache-dir '
           '--no-binary onedl-mmcv onedl-mmcv==2.3.6" (needs a C++ compiler, for a GPU nvcc, too)')


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """mmcv checks at import that every operator is there: the others raise when they are called."""
    if name.startswith('_'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(MISSING.format(name))

    return missing


def get_compiler_version() -> str:
    return f'none (operators of torchvision {torchvision.__version__})'


def get_compiling_cuda_version() -> str:
    return f'none (torch has {torch.version.cuda or "no CUDA"})'


def widened(x: Tensor) -> Tensor:
    """In float32, or as it is if it is more precise: half precision is for storage only."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices ``(m,)`` of the boxes that stay, best first.

    Args:
        boxes: ``(n, 4)``.
        scores: ``(n,)``.
        iou_threshold: Boxes that overlap a better one by more are suppressed.
        offset: 1 if right and bottom are the last pixels of a box, 0 if they are its edges.
    """
    edges = torch.cat((widened(boxes[:, :2]), widened(boxes[:, 2:]) + offset), 1)
    return OPERATORS.nms(edges, widened(scores), iou_threshold)


def overlaps(box: Tensor, boxes: Tensor, offset: int) -> Tensor:
    """Intersection over union of one box ``(4,)`` with others: ``(n,)``."""
    low = torch.maximum(box[:2], boxes[:, :2])
    high = torch.minimum(box[2:], boxes[:, 2:])
    shared = (high - low + offset).clamp_min(0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2] + offset).prod(1)
    return shared / ((box[2:] - box[:2] + offset).prod() + areas - shared)


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
            min_score: float, method: int, offset: int) -> Tensor:
    """Soft-NMS (arXiv 1704.04503): scores fall by overlap with better boxes.

    Args:
        boxes: ``(n, 4)``.
        scores: ``(n,)``.
        dets: ``(n, 5)``; its first m rows become boxes with their new scores.
        iou_threshold: Scores fall from this overlap on; not used by method 2.
        sigma: Width of method 2.
        min_score: Boxes below are left out.
        method: 0 naive, 1 linear, 2 Gaussian.
        offset: See :func:`nms`.

    Returns:
        Indices ``(m,)``, best first.
    """
    boxes, current = widened(boxes), widened(scores).clone()
    left = torch.arange(len(boxes), device=boxes.device)
    found: list[Tensor] = []
    while len(left):
        best = current[left].argmax()
        index = left[best]
        dets[len(found), :4], dets[len(found), 4] = boxes[index], current[index]
        found.append(index)
        left = torch.cat((left[:best], left[best + 1:]))
        overlap = overlaps(boxes[index], boxes[left], offset)
        if method == 2:
            factor = torch.exp(-overlap.square() / sigma)
        else:
            lowered = 1 - overlap if method == 1 else torch.zeros_like(overlap)
            factor = torch.where(overlap >= iou_threshold, lowered, torch.ones_like(overlap))
        current[left] *= factor
        left = left[current[left] >= min_score]
    return torch.stack(found) if found else left


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """For each box that stays, its index and those of the boxes that it suppresses.

    Args:
        dets: ``(n, 5)``, the score last.
        iou_threshold: Boxes that overlap a better one by as much are suppressed.
    """
    boxes, groups = widened(dets[:, :4]), []
    left = dets[:, 4].argsort(descending=True)
    while len(left):
        first, others = left[0], left[1:]
        matched = overlaps(boxes[first], boxes[others], 0) >= iou_threshold
        groups.append([int(first), *others[matched].tolist()])
        left = others[~matched]
    return groups


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor,
                      argmax_x: Tensor, *, aligned_height: int, aligned_width: int,
                      spatial_scale: float, sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:
    """RoIAlign (arXiv 1703.06870) of maps ``(B, C, H, W)`` to ``output`` ``(k, C, h, w)``."""
    require_average(pool_mode)
    output.copy_(
        OPERATORS.roi_align(
            widened(input), widened(rois), spatial_scale, aligned_height, aligned_width,
            sampling_ratio, aligned))


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                       grad_input: Tensor, *, aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int, pool_mode: int,
                       aligned: bool) -> None:
    """The gradient of :func:`roi_align_forward` by its maps, to ``grad_input``."""
    require_average(pool_mode)
    grad_input.copy_(
        OPERATORS._roi_align_backward(
            widened(grad_output), widened(rois), spatial_scale, aligned_height, aligned_width,
            *grad_input.shape, sampling_ratio, aligned))


def require_average(pool_mode: int) -> None:
    """Raise a NotImplementedError for RoIAlign that takes maxima."""
    if pool_mode != 1:
        raise NotImplementedError(MISSING.format("roi_align with pool_mode='max'"))


def roi_pool_forward(input: Tensor, rois: Tensor, output: Tensor, argmax: Tensor, *,
                     pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    """RoIPool (arXiv 1504.08083) of maps ``(B, C, H, W)`` to ``output`` ``(k, C, h, w)``.

    mmcv does not round the regions as torchvision does: each cell is a region of torchvision's.
    ``argmax``, as ``output``, gets the flat index of each maximum in its map, -1 in empty cells.
    """
    regions = widened(rois)
    first, last = regions[:, 1:3] * spatial_scale, (regions[:, 3:] + 1) * spatial_scale
    left, right = edges(first[:, 0], last[:, 0], pooled_width, input.shape[3])
    top, bottom = edges(first[:, 1], last[:, 1], pooled_height, input.shape[2])
    cells = torch.stack(
        torch.broadcast_tensors(regions[:, 0, None, None], left[:, None], top[..., None],
                                right[:, None] - 1, bottom[..., None] - 1), -1)  # (k, h, w, 5)
    found = OPERATORS.roi_pool(widened(input), cells.flatten(0, 2), 1, 1, 1)
    for target, values in zip((output, argmax), found, strict=True):
        target.copy_(values.view(*cells.shape[:3], input.shape[1]).permute(0, 3, 1, 2))


def edges(first: Tensor, last: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Of cells from ``first`` to ``last`` ``(k,)``: ``(k, count)``; empty ones lie at ``size``."""
    step = ((last - first) / count)[:, None]
    index = torch.arange(count, device=first.device)
    low = (index * step + first[:, None]).floor().clamp(0, size)
    high = ((index + 1) * step + first[:, None]).ceil().clamp(0, size)
    empty = (step <= 0) | (high <= low)
    return low.masked_fill(empty, size), high.masked_fill(empty, size)


def roi_pool_backward(grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor, *,
                      pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    """The gradient of :func:`roi_pool_forward` by its maps, to ``grad_input``."""
    grad_input.copy_(
        OPERATORS._roi_pool_backward(
            widened(grad_output), widened(rois), argmax, spatial_scale, pooled_height, pooled_width,
            *grad_input.shape))


def deform_conv_forward(input: Tensor, weight: Tensor, offset: Tensor, output: Tensor,
                        columns: Tensor, ones: Tensor, **sizes: int) -> None:
    """Deformable convolution (arXiv 1703.06211) to ``output``; offsets are y, x of each point."""
    output.copy_(deform(input, weight, offset, None, None, sizes))


def deform_conv_backward_input(input: Tensor, offset: Tensor, grad_output: Tensor,
                               grad_input: Tensor, grad_offset: Tensor, weight: Tensor,
                               columns: Tensor, **sizes: int) -> None:
    """The gradients of :func:`deform_conv_forward` by maps and offsets."""
    grads = deform_gradients(grad_output, input, weight, offset, None, None, sizes)
    grad_input.copy_(grads[0])
    grad_offset.copy_(grads[2])


def deform_conv_backward_parameters(input: Tensor, offset: Tensor, grad_output: Tensor,
                                    grad_weight: Tensor, columns: Tensor, ones: Tensor, *,
                                    scale: float, **sizes: int) -> None:
    """The gradient of :func:`deform_conv_forward` by its weights, times ``scale``."""
    weight = torch.zeros_like(grad_weight)
    grads = deform_gradients(grad_output, input, weight, offset, None, None, sizes)
    grad_weight.copy_(grads[1] * scale)


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor, *,
                                  with_bias: bool, **sizes: int) -> None:
    """Deformable convolution whose points have factors (arXiv 1811.11168) to ``output``."""
    output.copy_(deform(input, weight, offset, mask, bias if with_bias else None, sizes))


def modulated_deform_conv_backward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                   offset: Tensor, mask: Tensor, columns: Tensor,
                                   grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
                                   grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor, *,
                                   with_bias: bool, **sizes: int) -> None:
    """The gradients of :func:`modulated_deform_conv_forward`."""
    grads = deform_gradients(grad_output, input, weight, offset, mask, bias if with_bias else None,
                             sizes)
    targets = (grad_input, grad_weight, grad_offset, grad_mask)
    for target, grad in zip(targets, grads[:4], strict=True):
        target.copy_(grad)
    if with_bias:
        grad_bias.copy_(grads[4])


def deform(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None,
           sizes: dict[str, int]) -> Tensor:
    """torchvision's deformable convolution: ``(B, C', h, w)``."""
    return OPERATORS.deform_conv2d(*deform_tensors(input, weight, offset, mask, bias),
                                   *geometry(sizes), mask is not None)


def deform_gradients(grad: Tensor, input: Tensor, weight: Tensor, offset: Tensor,
                     mask: Tensor | None, bias: Tensor | None,
                     sizes: dict[str, int]) -> tuple[Tensor, ...]:
    """Of :func:`deform`, by maps, weights, offsets, factors and biases."""
    tensors = deform_tensors(input, weight, offset, mask, bias)
    return OPERATORS._deform_conv2d_backward(
        widened(grad), *tensors, *geometry(sizes), mask is not None)


def deform_tensors(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None,
                   bias: Tensor | None) -> list[Tensor]:
    """In full precision, with stand-ins for a mask and for biases."""
    mask = input.new_zeros(len(input), 1) if mask is None else mask
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return [widened(tensor) for tensor in (input, weight, offset, mask, bias)]


def geometry(sizes: dict[str, int]) -> list[int]:
    """Strides, paddings, dilations (each vertical, horizontal) and groups, of either version."""
    names = [('dH', 'stride_h'), ('dW', 'stride_w'), ('padH', 'pad_h'), ('padW', 'pad_w'),
             ('dilationH', 'dilation_h'), ('dilationW', 'dilation_w')]
    return [sizes[first] if first in sizes else sizes[second]
            for first, second in names] + [sizes['group'], sizes['deformable_group']]


def sigmoid_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Focal loss (arXiv 1708.02002) of ``(n, C)`` logits to ``output``.

    Args:
        input: ``(n, C)``.
        target: Classes ``(n,)``; any other number is the background.
        weight: Of classes, ``(C,)``; empty for none.
        output: ``(n, C)``.
        gamma: Exponent.
        alpha: Weight of the right class.
    """
    p, q, log_p, log_q = probabilities(input)
    loss = torch.where(
        is_class(target, input), -alpha * q**gamma * log_p, (alpha - 1) * p**gamma * log_q)
    output.copy_(loss * class_weights(weight, target)[:, None])


def sigmoid_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor,
                                *, gamma: float, alpha: float) -> None:
    """The gradient of the sum of :func:`sigmoid_focal_loss_forward`, to ``grad_input``."""
    p, q, log_p, log_q = probabilities(input)
    grad = torch.where(
        is_class(target, input), alpha * q**gamma * (gamma * p * log_p - q),
        (1 - alpha) * p**gamma * (p - gamma * q * log_q))
    grad_input.copy_(grad * class_weights(weight, target)[:, None])


def probabilities(logits: Tensor) -> list[Tensor]:
    """Of yes and of no, and their logarithms, each ``(n, C)``."""
    both = (widened(logits), -widened(logits))
    logarithms = [F.logsigmoid(x).clamp_min(math.log(TINY)) for x in both]
    return [*map(torch.sigmoid, both), *logarithms]


def is_class(target: Tensor, logits: Tensor) -> Tensor:
    """Which of the classes of ``(n, C)`` are the right ones."""
    return target[:, None] == torch.arange(logits.shape[1], device=logits.device)


def class_weights(weight: Tensor, target: Tensor) -> Tensor:
    """Those ``(n,)`` of the right classes: 1 for the background, or if ``weight`` is empty."""
    if not len(weight):
        return torch.ones_like(target, dtype=torch.float32)
    known = (target >= 0) & (target < len(weight))
    chosen = widened(weight)[target.clamp(0, len(weight) - 1)]
    return torch.where(known, chosen, torch.ones_like(chosen))


def softmax_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Focal loss ``(n,)`` of probabilities ``(n, C)``, to ``output``.

    Args:
        input: The softmax of the logits, ``(n, C)``.
        target: Classes ``(n,)``; those below zero have no loss.
        weight: Of classes, ``(C,)``; empty for none.
        output: ``(n,)``.
        gamma: Exponent.
        alpha: Weight of the loss.
    """
    p = of_class(input, target)
    loss = -alpha * (1 - p)**gamma * p.clamp_min(TINY).log() * class_weights(weight, target)
    output.copy_(loss.masked_fill(target < 0, 0))


def softmax_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, buff: Tensor,
                                grad_input: Tensor, *, gamma: float, alpha: float) -> None:
    """The gradient of :func:`softmax_focal_loss_forward` by the logits, to ``grad_input``."""
    p = of_class(input, target)
    rest = (1 - p).clamp_min(TINY)  # finite to powers below zero, too
    grad = gamma * rest**(gamma - 1) * p * p.clamp_min(TINY).log() - rest**gamma
    grad = (alpha * grad * class_weights(weight, target)).masked_fill(target < 0, 0)
    grad_input.copy_(grad[:, None] * (is_class(target, input).float() - widened(input)))


def of_class(probability: Tensor, target: Tensor) -> Tensor:
    """The probability ``(n,)`` of the right class, of ``(n, C)``; any if there is none."""
    return widened(probability).gather(1, target.clamp_min(0)[:, None])[:, 0]


def ms_deform_attn_forward(value: Tensor, value_spatial_shapes: Tensor,
                           value_level_start_index: Tensor, sampling_locations: Tensor,
                           attention_weights: Tensor, *, im2col_step: int) -> Tensor:
    """Multi-scale deformable attention (arXiv 2010.04159, equation 3), level by level.

    Args:
        value: ``(B, N, h, d)``: the positions of all L levels, heads, widths.
        value_spatial_shapes: Height and width of each level, ``(L, 2)``.
        value_level_start_index: Where each level starts in N, ``(L,)``.
        sampling_locations: x, y from 0 to 1, ``(B, Q, h, L, P, 2)``.
        attention_weights: ``(B, Q, h, L, P)``.
        im2col_step: Not used.

    Returns:
        ``(B, Q, h * d)``.
    """
    levels = zip(
        level_values(value, value_spatial_shapes, value_level_start_index),
        value_spatial_shapes.tolist(),
        sampling_locations.unbind(3),
        attention_weights.unbind(3),
        strict=True)
    return sum(
        attend(widened(values), size, widened(points), widened(weights))
        for values, size, points, weights in levels).flatten(2).to(value.dtype)


def ms_deform_attn_backward(value: Tensor, value_spatial_shapes: Tensor,
                            value_level_start_index: Tensor, sampling_locations: Tensor,
                            attention_weights: Tensor, grad_output: Tensor, grad_value: Tensor,
                            grad_sampling_loc: Tensor, grad_attn_weight: Tensor, *,
                            im2col_step: int) -> None:
    """The gradients of :func:`ms_deform_attn_forward`, to the three tensors before the last."""
    grad_heads = widened(grad_output).unflatten(2, value.shape[2:])
    sources, targets = (zip(
        level_values(values, value_spatial_shapes, value_level_start_index),
        points.unbind(3),
        weights.unbind(3),
        strict=True) for values, points, weights in ((value, sampling_locations, attention_weights),
                                                     (grad_value, grad_sampling_loc,
                                                      grad_attn_weight)))
    for size, source, target in zip(value_spatial_shapes.tolist(), sources, targets, strict=True):
        with torch.enable_grad():
            leaves = [widened(tensor).detach().requires_grad_() for tensor in source]
            out = attend(leaves[0], size, *leaves[1:])
        for tensor, grad in zip(target, torch.autograd.grad(out, leaves, grad_heads), strict=True):
            tensor.copy_(grad)


def level_values(value: Tensor, sizes: Tensor, starts: Tensor) -> list[Tensor]:
    """The parts ``(B, H * W, h, d)`` of ``(B, N, h, d)``."""
    lengths = sizes.prod(1).tolist()
    return [
        value.narrow(1, start, length)
        for start, length in zip(starts.tolist(), lengths, strict=True)
    ]


def attend(value: Tensor, size: list[int], points: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums ``(B, Q, h, d)`` of a level ``(B, H * W, h, d)`` at ``(B, Q, h, P, 2)``."""
    maps = value.permute(0, 2, 3, 1).flatten(0, 1).unflatten(2, size)  # (B * h, d, H, W)
    grid = (2 * points - 1).transpose(1, 2).flatten(0, 1)  # (B * h, Q, P, 2)
    samples = F.grid_sample(maps, grid, align_corners=False)  # (B * h, d, Q, P)
    factors = weights.transpose(1, 2).flatten(0, 1)[:, None]  # (B * h, 1, Q, P)
    sums = (samples * factors).sum(3).unflatten(0, (len(value), -1))  # (B, h, d, Q)
    return sums.permute(0, 3, 1, 2)
