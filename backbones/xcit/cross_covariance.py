"""Cross-covariance attention (XCiT, arXiv 2106.09681, section 3.2) in two exact forms.

Shapes: ``B`` images, ``N`` tokens, ``C`` width, ``h`` heads, ``d = C / h`` head width.

The *plain* form is the paper's. Queries, keys and values of all tokens are computed. Those of each
head, normalised over the tokens, give a map ``(d, d)``, which is multiplied with the values. On a
CPU without gradients, it is multiplied with the weights of the output projection instead.

The *covariance* form never writes them. All that the map needs of the tokens ``y`` is ``y^T y``
and their sum, since ``q^T k = W_q y^T y W_k^T`` plus terms of the biases. The norms of queries and
keys are the diagonals of such products of each with itself. Map, values and output projection are
linear in channels, so ``out = y M^T + b`` with ``M = W_proj blockdiag(A) W_v``. That makes two
products with the tokens instead of four, at the price of some products of ``(C, C)`` matrices.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.layers import call_linear, gram, linear, linear_per_image
from ..kernels.operators import BLOCK
from ..kernels.packed import PackedLinear
from ..kernels.precision import full_precision, product_dtype, widened

EPS = 1e-12  # the norm's lower bound, as in F.normalize


@dataclass
class AttentionWeights:
    """The parameters of one layer."""
    qkv: nn.Linear | PackedLinear  # C to 3 C
    temperature: Tensor  # (h, 1, 1)
    proj: Tensor  # (C, C)
    proj_bias: Tensor  # (C)


def cross_covariance_attention(y: Tensor,
                               weights: AttentionWeights,
                               *,
                               gpu_attention: str = 'plain') -> Tensor:
    """Attention between channels, by the form that costs less.

    Args:
        y: Normalised tokens ``(B, N, C)``.
        weights: Parameters of the layer.
        gpu_attention: ``triton`` takes :func:`triton_form` for half precision on GPUs.

    Returns:
        Tokens ``(B, N, C)``.
    """
    if gpu_attention == 'triton' and y.is_cuda and prefers_plain(y):
        return triton_form(y, weights)
    if not prefers_plain(y) and covariance_pays(*y.shape[1:]):
        return covariance_form(y, weights)
    return plain_form(y, weights)


def prefers_plain(y: Tensor) -> bool:
    """Whether the plain form is taken, however many tokens there are.

    Products of half precision are so much faster than the full precision of ``y^T y`` that those
    saved do not pay for it. Without data there is nothing to gain, and the paper's products
    are what is counted. An export must not choose by a size that it does not know yet.
    """
    return (y.is_meta or product_dtype(y).itemsize < 4 or torch.compiler.is_exporting())


def covariance_pays(num_tokens: int, width: int) -> bool:
    """Whether the covariance form is the faster one.

    It saves products of ``4 N C^2`` and the reading and writing of queries, keys and values, for
    products of ``6 C^3`` and some calls of small size. The limits are where the two took equal time
    for widths of 128, 384 and 768.
    """
    return num_tokens >= 1.7 * width + 15e6 / width**2


def plain_form(y: Tensor, weights: AttentionWeights) -> Tensor:
    """As the paper defines it; arguments as for :func:`cross_covariance_attention`."""
    heads = len(weights.temperature)
    qkv = call_linear(weights.qkv, y)  # (B, N, 3 C)
    if y.device.type == 'cpu' and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _attend_by_weights(qkv, weights)
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, h, N, d)
    with full_precision(y):
        products = widened(q).mT @ widened(k)  # (B, h, d, d)
        norms_q, norms_k = (widened(t).norm(dim=2).clamp_min(EPS) for t in (q, k))  # (B, h, d)
    attention = _softmax(products, norms_q, norms_k, weights.temperature)
    out = v @ attention.mT.to(v.dtype)  # (B, h, N, d)
    return linear(out.transpose(1, 2).flatten(2), weights.proj, weights.proj_bias)


def _attend_by_weights(qkv: Tensor, weights: AttentionWeights) -> Tensor:
    """The plain form from its queries, keys and values ``(B, N, 3 C)``, fast on a CPU."""
    heads = len(weights.temperature)
    q, k, v = qkv.chunk(3, dim=2)
    if qkv.dtype.itemsize < 4:  # all pairs of channels take less time than to part the heads
        # image by image: bmm would copy the transposed queries
        pairs = q.new_empty(len(q), q.shape[2], k.shape[2])
        for image, queries, keys in zip(pairs, q, k, strict=True):
            torch.mm(queries.T, keys, out=image)
        pairs = pairs.unflatten(1, (heads, -1)).unflatten(3, (heads, -1))  # (B, h, d, h, d)
        products = widened(pairs.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2))  # (B, h, d, d)
    else:
        q_heads, k_heads = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (q, k))
        products = q_heads.mT @ k_heads
    norms = _norms(qkv[:, :, :2 * k.shape[2]]).unflatten(1, (2, heads, -1))
    attention = _softmax(products, norms[:, 0], norms[:, 1], weights.temperature)
    with full_precision(v):
        proj = widened(weights.proj).unflatten(1, (heads, -1)).transpose(0, 1)  # (h, C, d)
        matrix = (proj @ attention).transpose(1, 2).flatten(2)  # (B, C, C)
        bias = weights.proj_bias.expand(len(v), -1)
        return linear_per_image(v, matrix.to(v.dtype), bias.to(v.dtype))


def _norms(x: Tensor) -> Tensor:
    """Of the columns of ``(B, N, C)``, bounded below: ``(B, C)``."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    squares = sum((rows * rows).sum(1, dtype=dtype) for rows in x.split(BLOCK, dim=1))
    return squares.sqrt().clamp_min(EPS)


def triton_form(y: Tensor, weights: AttentionWeights) -> Tensor:
    """The plain form by Triton's kernels; arguments as for :func:`cross_covariance_attention`."""
    from .fused_gpu import cross_covariance  # not everybody has Triton
    qkv = call_linear(weights.qkv, y).unflatten(2, (3, len(weights.temperature), -1))
    return linear(cross_covariance(qkv, weights.temperature, EPS), weights.proj, weights.proj_bias)


def covariance_form(y: Tensor, weights: AttentionWeights) -> Tensor:
    """By the covariance of the tokens; arguments as for :func:`cross_covariance_attention`."""
    heads, width = len(weights.temperature), y.shape[2]
    with full_precision(y):
        covariance, total = gram(y), widened(y).sum(1)  # (B, C, C), (B, C)
        qk, v = widened(weights.qkv.weight).split((2 * width, width))
        proj, proj_bias = widened(weights.proj), widened(weights.proj_bias)
        # the covariance is its own transpose
        of_tokens = linear_per_image(qk.expand(len(y), -1, -1), covariance)
        of_ones = total @ qk.mT
        if weights.qkv.bias is not None:
            qk_bias, v_bias = widened(weights.qkv.bias).split((2 * width, width))
            of_tokens = torch.addcmul(of_tokens, qk_bias.unsqueeze(1), total.unsqueeze(1))
            of_ones = torch.add(of_ones, qk_bias, alpha=y.shape[1])
        # of_tokens is [q k]^T y (B, 2 C, C), of_ones is [q k]^T 1 (B, 2 C)
        squares = (of_tokens * qk).sum(-1)  # (B, 2 C)
        queries = of_tokens[:, :width].unflatten(1, (heads, -1))  # (B, h, d, C)
        products = queries @ qk[width:].unflatten(0, (heads, -1)).mT  # (B, h, d, d)
        if weights.qkv.bias is not None:
            squares = torch.addcmul(squares, of_ones, qk_bias)
            key_bias = qk_bias[width:].view(heads, 1, -1)
            products = torch.addcmul(products, of_ones[:, :width].unflatten(1, (heads, -1, 1)),
                                     key_bias)
        norms = squares.clamp_min(EPS**2).sqrt().clamp_min(EPS)
        norms_q, norms_k = norms.unflatten(1, (2, heads, -1)).unbind(1)  # (B, h, d)
        attention = _softmax(products, norms_q, norms_k, weights.temperature)
        values = attention @ v.unflatten(0, (heads, -1))  # (B, h, d, C)
        matrix = linear(values.flatten(1, 2).mT, proj).mT  # (B, C, C)
        bias = proj_bias.expand(len(y), -1)
        if weights.qkv.bias is not None:
            mixed = attention @ v_bias.view(heads, -1, 1)  # (B, h, d, 1)
            bias = F.linear(mixed.flatten(1), proj, proj_bias)
    return linear_per_image(y, matrix.to(y.dtype), bias.to(y.dtype))


def _softmax(products: Tensor, norms_q: Tensor, norms_k: Tensor, temperature: Tensor) -> Tensor:
    """Rows of ``q^T k`` to the attention of normalised queries and keys."""
    scale = widened(temperature) / norms_q.unsqueeze(3)
    return F.softmax(products * scale / norms_k.unsqueeze(2), dim=-1)
