"""Cross-covariance attention (XCiT, arXiv 2106.09681, section 3.2) in two exact implementations.

Shapes: ``B`` images, ``N`` tokens, ``C`` width, ``h`` heads, ``d = C / h`` head width.

The *plain* one is the paper's: queries and keys of each head, normalized over the tokens, give a
map ``(d, d)``, which multiplies the values. On a CPU without gradients, it multiplies the weights
of the output projection instead.

The *covariance* one never computes queries, keys and values. The map depends on the tokens ``y``
only by their mean ``m`` and ``z^T z`` with ``z = y - m``, since ``q^T k = W_q z^T z W_k^T + N
q(m)^T k(m)``, where ``q(m)`` and ``k(m)`` are query and key of the mean. The norms of queries and
keys are the diagonals of such products. Map, values and output projection are linear in channels,
so ``out = y M^T + b`` with ``M = W_proj blockdiag(A) W_v``. This takes two matmuls of the tokens
instead of four, and some of ``(C, C)`` matrices. Without subtraction of the mean, ``y^T y`` would
lose the digits in which tokens differ.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.custom_ops import BLOCK
from ..kernels.devices import disable_autocast, get_matmul_dtype, should_use_cpu_forms, to_float32
from ..kernels.layers import call_linear, gram, linear, linear_per_image
from ..kernels.packed import PackedLinear

EPS = 1e-12  # lower bound of norms, as in F.normalize


@dataclass
class AttentionWeights:
    """Parameters of one layer."""
    qkv: nn.Linear | PackedLinear  # C to 3 C
    temperature: Tensor  # (h, 1, 1)
    proj: Tensor  # (C, C)
    proj_bias: Tensor  # (C)
    packed_proj: PackedLinear | None = None  # the same, packed

    def project(self, x: Tensor) -> Tensor:
        """Apply the output projection to ``(B, N, C)``."""
        if self.packed_proj is None:
            return linear(x, self.proj, self.proj_bias)
        return self.packed_proj(x)


def cross_covariance_attention(y: Tensor, weights: AttentionWeights) -> Tensor:
    """Return attention between channels of normalized tokens ``(B, N, C)``, the faster way."""
    if not should_attend_plain(y) and is_covariance_faster(*y.shape[1:]):
        return attend_by_covariance(y, weights)
    return attend_plain(y, weights)


def should_attend_plain(y: Tensor) -> bool:
    """Return True if the plain implementation is used for any number of tokens.

    In half precision, matmuls are so fast that saving some does not pay for ``z^T z`` in float32.
    The crossover was timed on CPUs only, and the meta device counts the paper's operations. An
    export must not depend on a size.
    """
    return (not should_use_cpu_forms(y) or get_matmul_dtype(y).itemsize < 4
            or torch.compiler.is_exporting())


def is_covariance_faster(num_tokens: int, width: int) -> bool:
    """Return True if the covariance implementation is faster on a CPU.

    It saves ``4 N C^2`` multiply-adds and memory traffic, and takes ``6 C^3`` and some small calls.
    The limits are where both took equal time for widths of 128, 384 and 768.
    """
    return num_tokens >= 1.7 * width + 15e6 / width**2


def attend_plain(y: Tensor, weights: AttentionWeights) -> Tensor:
    """Compute :func:`cross_covariance_attention` as the paper defines it."""
    heads = len(weights.temperature)
    qkv = call_linear(weights.qkv, y)  # (B, N, 3 C)
    fast = should_use_cpu_forms(y) and not torch.compiler.is_compiling()
    # Sums over all tokens can overflow float16.
    if fast and not torch.is_grad_enabled() and qkv.dtype != torch.float16:
        return _attend_without_gradients(qkv, weights)
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, h, N, d)
    with disable_autocast(y):
        attention = _softmax(_cosines(q, k), weights.temperature)
    out = v @ attention.mT.to(v.dtype)  # (B, h, N, d)
    return weights.project(out.transpose(1, 2).flatten(2))


def _cosines(q: Tensor, k: Tensor) -> Tensor:
    """Return the cosines ``(B, h, d, d)`` between channels of queries and keys ``(B, h, N, d)``."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    norms_q, norms_k = (
        torch.linalg.vector_norm(x, dim=2, dtype=dtype).clamp_min(EPS) for x in (q, k))
    if q.dtype.itemsize >= 4:
        return _divide(q.mT @ k, norms_q, norms_k)
    # Sums over all tokens can overflow float16, and float32 copies would be stored for gradients.
    # Normalizing first needs neither.
    q, k = ((x / norms.unsqueeze(2)).to(x.dtype) for x, norms in ((q, norms_q), (k, norms_k)))
    return to_float32(q.mT @ k)


def _divide(products: Tensor, norms_q: Tensor, norms_k: Tensor) -> Tensor:
    """Divide ``q^T k`` ``(B, h, d, d)`` by the norms of queries and keys, each ``(B, h, d)``."""
    return products / norms_q.unsqueeze(3) / norms_k.unsqueeze(2)


def _attend_without_gradients(qkv: Tensor, weights: AttentionWeights) -> Tensor:
    """Compute :func:`attend_plain` from ``qkv`` ``(B, N, 3 C)``, as is fast on a CPU.

    With many tokens, the attention is applied to the output projection, not to the values.
    """
    heads = len(weights.temperature)
    q, k, v = qkv.chunk(3, dim=2)
    if qkv.dtype.itemsize < 4:  # all pairs of channels are faster than splitting the heads
        # bmm of all images would copy the transposed queries.
        pairs = q.new_empty(len(q), q.shape[2], k.shape[2])
        for image, queries, keys in zip(pairs, q, k, strict=True):
            torch.mm(queries.T, keys, out=image)
        pairs = pairs.unflatten(1, (heads, -1)).unflatten(3, (heads, -1))  # (B, h, d, h, d)
        products = to_float32(pairs.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2))  # (B, h, d, d)
    else:
        q_heads, k_heads = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (q, k))
        products = q_heads.mT @ k_heads
    norms = _column_norms(qkv[:, :, :2 * k.shape[2]]).unflatten(1, (2, heads, -1))
    attention = _softmax(_divide(products, norms[:, 0], norms[:, 1]), weights.temperature)
    if v.shape[1] < v.shape[2]:
        heads_of_v = v.unflatten(2, (heads, -1)).transpose(1, 2)  # (B, h, N, d)
        out = heads_of_v @ attention.mT.to(v.dtype)
        return weights.project(out.transpose(1, 2).flatten(2))
    with disable_autocast(v):
        proj = to_float32(weights.proj).unflatten(1, (heads, -1)).transpose(0, 1)  # (h, C, d)
        matrix = (proj @ attention).transpose(1, 2).flatten(2)  # (B, C, C)
        bias = weights.proj_bias.expand(len(v), -1)
        return linear_per_image(v, matrix.to(v.dtype), bias.to(v.dtype))


def _column_norms(x: Tensor) -> Tensor:
    """Return the norms ``(B, C)`` of the columns of ``(B, N, C)``, at least ``EPS``."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    squares = sum((rows * rows).sum(1, dtype=dtype) for rows in x.split(BLOCK, dim=1))
    return squares.sqrt().clamp_min(EPS)


def attend_by_covariance(y: Tensor, weights: AttentionWeights) -> Tensor:
    """Compute :func:`cross_covariance_attention` from the covariance of the tokens."""
    heads, (_, num_tokens, width) = len(weights.temperature), y.shape
    with disable_autocast(y):
        tokens, qkv, proj = map(to_float32, (y, weights.qkv.weight, weights.proj))
        bias = qkv.new_zeros(len(qkv)) if weights.qkv.bias is None else weights.qkv.bias
        qk, v = qkv.split((2 * width, width))
        qk_bias, v_bias = to_float32(bias).split((2 * width, width))
        mean = tokens.mean(1)  # (B, C)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # only z is stored
            tokens, v_bias = tokens - mean.unsqueeze(1), F.linear(mean, v, v_bias)
            covariance = gram(tokens)  # (B, C, C)
        else:
            covariance = gram(tokens, mean.unsqueeze(1))
        qk_of_mean = F.linear(mean, qk, qk_bias)  # (B, 2 C)
        # (B, 2 C, C); the covariance is symmetric
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
        matrix = linear(values.flatten(1, 2).mT, proj).mT  # (B, C, C)
        mixed = attention @ v_bias.view(-1, heads, width // heads, 1)  # (B, h, d, 1)
        out_bias = F.linear(mixed.flatten(1), proj, to_float32(weights.proj_bias))
    return linear_per_image(tokens.to(y.dtype), matrix.to(y.dtype), out_bias.to(y.dtype))


def _softmax(cosines: Tensor, temperature: Tensor) -> Tensor:
    """Return the attention ``(B, h, d, d)`` of cosines between channels."""
    return F.softmax(cosines * to_float32(temperature), dim=-1)
