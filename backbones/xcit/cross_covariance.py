"""Cross-covariance attention (XCiT, arXiv 2106.09681, section 3.2) in two exact forms.

Shapes: ``B`` images, ``N`` tokens, ``C`` width, ``h`` heads, ``d = C / h`` head width.

The *plain* form is the paper's. Queries, keys and values of all tokens are computed. Those of each
head, normalised over the tokens, give a map ``(d, d)``, which is multiplied with the values. On a
CPU without gradients, it is multiplied with the weights of the output projection instead.

The *covariance* form never writes them. All that the map needs of the tokens ``y`` is their mean
``m`` and ``z^T z`` with ``z = y - m``, since ``q^T k = W_q z^T z W_k^T + N q(m)^T k(m)``, where
``q(m)`` and ``k(m)`` are query and key of the mean. The norms of queries and keys are the diagonals
of such products of each with itself. Map, values and output projection are linear in channels, so
``out = z M^T + b`` with ``M = W_proj blockdiag(A) W_v``. That makes two products with the tokens
instead of four, at the price of some products of ``(C, C)`` matrices. Without its mean subtracted,
``y^T y`` would lose the digits by which tokens differ.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.custom_ops import BLOCK
from ..kernels.devices import should_use_cpu_forms
from ..kernels.layers import call_linear, gram, linear, linear_per_image
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


def cross_covariance_attention(y: Tensor, weights: AttentionWeights) -> Tensor:
    """Attention between channels, by the form that costs less.

    Args:
        y: Normalised tokens ``(B, N, C)``.
        weights: Parameters of the layer.

    Returns:
        Tokens ``(B, N, C)``.
    """
    if not prefers_plain(y) and is_covariance_faster(*y.shape[1:]):
        return covariance_form(y, weights)
    return attend_plain(y, weights)


def prefers_plain(y: Tensor) -> bool:
    """Whether the plain form is taken, however many tokens there are.

    Products of half precision are so much faster than the full precision of ``z^T z`` that those
    saved do not pay for it. What pays was timed on CPUs, so other devices run the plain form, and
    so does the meta device, on which the paper's products are counted. An export must not choose
    by a size that it does not know yet.
    """
    return (not should_use_cpu_forms(y) or product_dtype(y).itemsize < 4
            or torch.compiler.is_exporting())


def is_covariance_faster(num_tokens: int, width: int) -> bool:
    """Whether the covariance form is the faster one on a CPU.

    It saves products of ``4 N C^2`` and the reading and writing of queries, keys and values, for
    products of ``6 C^3`` and some calls of small size. The limits are where the two took equal time
    for widths of 128, 384 and 768.
    """
    return num_tokens >= 1.7 * width + 15e6 / width**2


def attend_plain(y: Tensor, weights: AttentionWeights) -> Tensor:
    """As the paper defines it; arguments as for :func:`cross_covariance_attention`."""
    heads = len(weights.temperature)
    qkv = call_linear(weights.qkv, y)  # (B, N, 3 C)
    fast = should_use_cpu_forms(y) and not torch.compiler.is_compiling()
    # Sums over all tokens may be too large for float16.
    if fast and not torch.is_grad_enabled() and qkv.dtype != torch.float16:
        return _attend_by_weights(qkv, weights)
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, h, N, d)
    with full_precision(y):
        attention = _softmax(_cosines(q, k), weights.temperature)
    out = v @ attention.mT.to(v.dtype)  # (B, h, N, d)
    return linear(out.transpose(1, 2).flatten(2), weights.proj, weights.proj_bias)


def _cosines(q: Tensor, k: Tensor) -> Tensor:
    """Return the cosines between channels of queries and keys, in float32 at least.

    Args:
        q: Queries ``(B, h, N, d)``.
        k: Keys of the same shape.

    Returns:
        ``(B, h, d, d)``.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    norms_q, norms_k = (
        torch.linalg.vector_norm(x, dim=2, dtype=dtype).clamp_min(EPS) for x in (q, k))
    if q.dtype.itemsize >= 4:
        return _divide(q.mT @ k, norms_q, norms_k)
    # Sums over all tokens may be too large for float16, and float32 copies of queries and keys
    # would be stored for gradients. Cosines need neither.
    q, k = ((x / norms.unsqueeze(2)).to(x.dtype) for x, norms in ((q, norms_q), (k, norms_k)))
    return widened(q.mT @ k)


def _divide(products: Tensor, norms_q: Tensor, norms_k: Tensor) -> Tensor:
    """Divide ``q^T k`` ``(B, h, d, d)`` by the norms of queries and keys, each ``(B, h, d)``."""
    return products / norms_q.unsqueeze(3) / norms_k.unsqueeze(2)


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
    attention = _softmax(_divide(products, norms[:, 0], norms[:, 1]), weights.temperature)
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


def covariance_form(y: Tensor, weights: AttentionWeights) -> Tensor:
    """By the covariance of the tokens; arguments as for :func:`cross_covariance_attention`."""
    heads, (_, num_tokens, width) = len(weights.temperature), y.shape
    with full_precision(y):
        tokens, qkv = widened(y), widened(weights.qkv.weight)
        # In float64, since rounding a large mean once would be an error of all tokens alike.
        mean = tokens.mean(1, dtype=torch.float64)  # (B, C)
        tokens = tokens - mean.to(tokens.dtype).unsqueeze(1)
        covariance = gram(tokens)  # (B, C, C)
        qkv_bias = None if weights.qkv.bias is None else weights.qkv.bias.double()
        of_mean = F.linear(mean, qkv.double(), qkv_bias).to(qkv.dtype)
        qk_of_mean, v_of_mean = of_mean.split((2 * width, width), dim=1)  # (B, 2 C), (B, C)
        qk, v = qkv.split((2 * width, width))
        # (B, 2 C, C); the covariance is its own transpose
        qk_by_covariance = linear_per_image(qk.expand(len(y), -1, -1), covariance)
        squares = (qk_by_covariance * qk).sum(-1)  # (B, 2 C)
        squares = torch.addcmul(squares, qk_of_mean, qk_of_mean, value=num_tokens)
        queries = qk_by_covariance[:, :width].unflatten(1, (heads, -1))  # (B, h, d, C)
        products = queries @ qk[width:].unflatten(0, (heads, -1)).mT  # (B, h, d, d)
        q_of_mean, k_of_mean = qk_of_mean.unflatten(1, (2, heads, -1)).unbind(1)  # (B, h, d)
        products = torch.addcmul(
            products, q_of_mean.unsqueeze(3), k_of_mean.unsqueeze(2), value=num_tokens)
        norms = squares.clamp_min(EPS**2).sqrt().clamp_min(EPS)
        norms_q, norms_k = norms.unflatten(1, (2, heads, -1)).unbind(1)  # (B, h, d)
        attention = _softmax(_divide(products, norms_q, norms_k), weights.temperature)
        values = attention @ v.unflatten(0, (heads, -1))  # (B, h, d, C)
        proj = widened(weights.proj)
        matrix = linear(values.flatten(1, 2).mT, proj).mT  # (B, C, C)
        mixed = attention @ v_of_mean.unflatten(1, (heads, -1, 1))  # (B, h, d, 1)
        bias = F.linear(mixed.flatten(1), proj, widened(weights.proj_bias))
    return linear_per_image(tokens.to(y.dtype), matrix.to(y.dtype), bias.to(y.dtype))


def _softmax(cosines: Tensor, temperature: Tensor) -> Tensor:
    """Return the attention ``(B, h, d, d)`` of cosines between channels."""
    return F.softmax(cosines * widened(temperature), dim=-1)
