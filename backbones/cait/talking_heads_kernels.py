"""Triton kernels of talking-heads attention; :mod:`.fused_gpu` launches them.

A program computes the maps of all heads for a block of queries and a block of keys, since heads are
mixed. No map is written to memory: the logits' sums of exponentials are, and with them a softmax is
computed again block by block.

Shapes: ``N`` queries and ``M`` keys of a block, ``HEADS`` heads and ``WIDTH`` channels of a head.
``ALL`` and ``PADDED`` are the powers of two above these two. ``SUM`` is the precision of sums. What
does not exist is loaded as 0.
"""
import triton
import triton.language as tl


@triton.jit
def block_of(base, first, tokens, stride, BLOCK: tl.constexpr, HEADS: tl.constexpr,
             ALL: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Where a block of tokens lies, and which of it exists: (ALL, BLOCK, PADDED)."""
    heads = tl.arange(0, ALL)[:, None, None]
    rows = first + tl.arange(0, BLOCK)[None, :, None]
    columns = tl.arange(0, PADDED)[None, None, :]
    exists = (heads < HEADS) & (rows < tokens) & (columns < WIDTH)
    return base + rows * stride + heads * WIDTH + columns, exists


@triton.jit
def load_block(base, first, tokens, stride, BLOCK: tl.constexpr, HEADS: tl.constexpr,
               ALL: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A block of tokens: (ALL, BLOCK, PADDED)."""
    where, exists = block_of(base, first, tokens, stride, BLOCK, HEADS, ALL, WIDTH, PADDED)
    return tl.load(where, exists, 0.)


@triton.jit
def load_row(base, first, tokens, BLOCK: tl.constexpr, HEADS: tl.constexpr, ALL: tl.constexpr):
    """A number per head and query: (ALL, BLOCK)."""
    where, exists = row_of(base, first, tokens, BLOCK, HEADS, ALL)
    return tl.load(where, exists, 0.)


@triton.jit
def load_mixing(weight, HEADS: tl.constexpr, ALL: tl.constexpr):
    """A matrix that mixes heads: (ALL, ALL)."""
    where, exists = mixing_of(weight, HEADS, ALL)
    return tl.load(where, exists, 0.)


@triton.jit
def load_bias(bias, HEADS: tl.constexpr, ALL: tl.constexpr):
    """What is added to maps: (ALL, 1, 1)."""
    head = tl.arange(0, ALL)
    return tl.load(bias + head, head < HEADS, 0.)[:, None, None]


@triton.jit
def row_of(base, first, tokens, BLOCK: tl.constexpr, HEADS: tl.constexpr, ALL: tl.constexpr):
    """Where a number per head and query lies, and which exist: (ALL, BLOCK)."""
    heads = tl.arange(0, ALL)[:, None]
    rows = first + tl.arange(0, BLOCK)[None, :]
    return base + heads * tokens + rows, (heads < HEADS) & (rows < tokens)


@triton.jit
def mixing_of(weight, HEADS: tl.constexpr, ALL: tl.constexpr):
    """Where a matrix that mixes heads lies, and which of it exists: (ALL, ALL)."""
    rows = tl.arange(0, ALL)[:, None]
    columns = tl.arange(0, ALL)[None, :]
    return weight + rows * HEADS + columns, (rows < HEADS) & (columns < HEADS)


@triton.jit
def mix(maps, weight, N: tl.constexpr, M: tl.constexpr, ALL: tl.constexpr, SUM: tl.constexpr):
    """Linear combinations of maps (ALL, N, M)."""
    flat = tl.reshape(maps, (ALL, N * M))
    mixed = tl.dot(weight, flat, input_precision='tf32', out_dtype=SUM)
    return tl.reshape(mixed, (ALL, N, M))


@triton.jit
def mixing_gradient(grad, maps, N: tl.constexpr, M: tl.constexpr, ALL: tl.constexpr,
                    SUM: tl.constexpr):
    """Of :func:`mix`, by its weight: (ALL, ALL)."""
    grad = tl.reshape(grad, (ALL, N * M))
    maps = tl.reshape(maps, (ALL, N * M))
    return tl.dot(grad, tl.trans(maps), input_precision='tf32', out_dtype=SUM)


@triton.jit
def forward_kernel(qkv, weight_l, bias_l, weight_w, bias_w, out, sums, tokens, scale,
                   SUM: tl.constexpr, N: tl.constexpr, M: tl.constexpr, HEADS: tl.constexpr,
                   ALL: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Attended values of a block of queries, in two passes over the keys.

    The first finds the sums of exponentials of each mixed head, in logarithms.
    """
    image, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * N
    wide: tl.constexpr = HEADS * WIDTH
    qkv += image * tokens * 3 * wide
    before = load_mixing(weight_l, HEADS, ALL)
    shift = load_bias(bias_l, HEADS, ALL)
    query = load_block(qkv, first, tokens, 3 * wide, N, HEADS, ALL, WIDTH, PADDED)

    peaks = tl.full((ALL, N), -1e30, SUM)
    totals = tl.zeros((ALL, N), SUM)
    for begin in range(0, tokens, M):
        key = load_block(qkv + wide, begin, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
        maps = tl.dot(query, tl.trans(key, 0, 2, 1), input_precision='ieee', out_dtype=SUM) * scale
        maps = mix(maps, before, N, M, ALL, SUM) + shift
        inside = (begin + tl.arange(0, M) < tokens)[None, None, :]
        maps = tl.where(inside, maps, -1e30)
        higher = tl.maximum(peaks, tl.max(maps, 2))
        powers = tl.where(inside, tl.exp(maps - higher[:, :, None]), 0.)
        totals = totals * tl.exp(peaks - higher) + tl.sum(powers, 2)
        peaks = higher
    logs = peaks + tl.log(totals)
    where, exists = row_of(sums + image * HEADS * tokens, first, tokens, N, HEADS, ALL)
    tl.store(where, logs, exists)

    after = load_mixing(weight_w, HEADS, ALL)
    behind = load_bias(bias_w, HEADS, ALL)
    attended = tl.zeros((ALL, N, PADDED), SUM)
    for begin in range(0, tokens, M):
        key = load_block(qkv + wide, begin, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
        maps = tl.dot(query, tl.trans(key, 0, 2, 1), input_precision='ieee', out_dtype=SUM) * scale
        maps = mix(maps, before, N, M, ALL, SUM) + shift
        inside = (begin + tl.arange(0, M) < tokens)[None, None, :]
        maps = tl.where(inside, tl.exp(maps - logs[:, :, None]), 0.)
        maps = mix(maps, after, N, M, ALL, SUM) + behind
        value = load_block(qkv + 2 * wide, begin, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
        attended = tl.dot(
            maps.to(value.dtype), value, attended, input_precision='ieee', out_dtype=SUM)
    where, exists = block_of(out + image * tokens * wide, first, tokens, wide, N, HEADS, ALL, WIDTH,
                             PADDED)
    tl.store(where, attended, exists)


@triton.jit
def maps_of(query, key, value, grad, logs, before, shift, after, first_key, tokens, scale,
            SUM: tl.constexpr, N: tl.constexpr, M: tl.constexpr, ALL: tl.constexpr):
    """Logits, softmax weights, gradients of the mixed ones, and of the softmax weights."""
    logits = tl.dot(query, tl.trans(key, 0, 2, 1), input_precision='ieee', out_dtype=SUM) * scale
    inside = (first_key + tl.arange(0, M) < tokens)[None, None, :]
    maps = mix(logits, before, N, M, ALL, SUM) + shift
    maps = tl.where(inside, tl.exp(maps - logs[:, :, None]), 0.)
    grad_mixed = tl.dot(grad, tl.trans(value, 0, 2, 1), input_precision='ieee', out_dtype=SUM)
    return logits, maps, grad_mixed, mix(grad_mixed, tl.trans(after), N, M, ALL, SUM)


@triton.jit
def query_gradients_kernel(qkv, grad, weight_l, bias_l, weight_w, sums, inner, grad_qkv, partial,
                           tokens, scale, SUM: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
                           HEADS: tl.constexpr, ALL: tl.constexpr, WIDTH: tl.constexpr,
                           PADDED: tl.constexpr):
    """Of a block of queries, and its part in those of weights and biases that mix heads.

    The first pass over the keys finds the rows' products of softmax weights and their gradients.
    """
    image, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * N
    wide: tl.constexpr = HEADS * WIDTH
    qkv += image * tokens * 3 * wide
    before = load_mixing(weight_l, HEADS, ALL)
    after = load_mixing(weight_w, HEADS, ALL)
    shift = load_bias(bias_l, HEADS, ALL)
    logs = load_row(sums + image * HEADS * tokens, first, tokens, N, HEADS, ALL)
    query = load_block(qkv, first, tokens, 3 * wide, N, HEADS, ALL, WIDTH, PADDED)
    grad_out = load_block(grad + image * tokens * wide, first, tokens, wide, N, HEADS, ALL, WIDTH,
                          PADDED)

    products = tl.zeros((ALL, N), SUM)
    for begin in range(0, tokens, M):
        key = load_block(qkv + wide, begin, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
        value = load_block(qkv + 2 * wide, begin, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
        _, maps, _, grad_maps = maps_of(query, key, value, grad_out, logs, before, shift, after,
                                        begin, tokens, scale, SUM, N, M, ALL)
        products += tl.sum(maps * grad_maps, 2)
    where, exists = row_of(inner + image * HEADS * tokens, first, tokens, N, HEADS, ALL)
    tl.store(where, products, exists)

    grad_query = tl.zeros((ALL, N, PADDED), SUM)
    grad_before = tl.zeros((ALL, ALL), SUM)
    grad_after = tl.zeros((ALL, ALL), SUM)
    grad_shift = tl.zeros((ALL, ), SUM)
    grad_behind = tl.zeros((ALL, ), SUM)
    for begin in range(0, tokens, M):
        key = load_block(qkv + wide, begin, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
        value = load_block(qkv + 2 * wide, begin, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
        logits, maps, grad_mixed, grad_maps = maps_of(query, key, value, grad_out, logs, before,
                                                      shift, after, begin, tokens, scale, SUM, N, M,
                                                      ALL)
        grad_after += mixing_gradient(grad_mixed, maps, N, M, ALL, SUM)
        grad_behind += tl.sum(tl.sum(grad_mixed, 2), 1)
        grad_maps = maps * (grad_maps - products[:, :, None])  # of the softmax
        grad_before += mixing_gradient(grad_maps, logits, N, M, ALL, SUM)
        grad_shift += tl.sum(tl.sum(grad_maps, 2), 1)
        grad_maps = mix(grad_maps, tl.trans(before), N, M, ALL, SUM) * scale
        grad_query = tl.dot(
            grad_maps.to(key.dtype), key, grad_query, input_precision='ieee', out_dtype=SUM)
    where, exists = block_of(grad_qkv + image * tokens * 3 * wide, first, tokens, 3 * wide, N,
                             HEADS, ALL, WIDTH, PADDED)
    tl.store(where, grad_query, exists)
    partial += (image * tl.num_programs(0) + tl.program_id(0)) * 2 * (HEADS + 1) * HEADS
    where, exists = mixing_of(partial, HEADS, ALL)
    tl.store(where, grad_before, exists)
    tl.store(where + (HEADS + 1) * HEADS, grad_after, exists)
    head = tl.arange(0, ALL)
    partial += HEADS * HEADS + head
    tl.store(partial, grad_shift, head < HEADS)
    tl.store(partial + (HEADS + 1) * HEADS, grad_behind, head < HEADS)


@triton.jit
def key_gradients_kernel(qkv, grad, weight_l, bias_l, weight_w, bias_w, sums, inner, grad_qkv,
                         tokens, scale, SUM: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
                         HEADS: tl.constexpr, ALL: tl.constexpr, WIDTH: tl.constexpr,
                         PADDED: tl.constexpr):
    """Of a block of keys and values."""
    image, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * M
    wide: tl.constexpr = HEADS * WIDTH
    qkv += image * tokens * 3 * wide
    grad += image * tokens * wide
    sums += image * HEADS * tokens
    inner += image * HEADS * tokens
    before = load_mixing(weight_l, HEADS, ALL)
    after = load_mixing(weight_w, HEADS, ALL)
    shift = load_bias(bias_l, HEADS, ALL)
    behind = load_bias(bias_w, HEADS, ALL)
    key = load_block(qkv + wide, first, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)
    value = load_block(qkv + 2 * wide, first, tokens, 3 * wide, M, HEADS, ALL, WIDTH, PADDED)

    grad_key = tl.zeros((ALL, M, PADDED), SUM)
    grad_value = tl.zeros((ALL, M, PADDED), SUM)
    for begin in range(0, tokens, N):
        query = load_block(qkv, begin, tokens, 3 * wide, N, HEADS, ALL, WIDTH, PADDED)
        grad_out = load_block(grad, begin, tokens, wide, N, HEADS, ALL, WIDTH, PADDED)
        logs = load_row(sums, begin, tokens, N, HEADS, ALL)
        products = load_row(inner, begin, tokens, N, HEADS, ALL)
        _, maps, _, grad_maps = maps_of(query, key, value, grad_out, logs, before, shift, after,
                                        first, tokens, scale, SUM, N, M, ALL)
        mixed = mix(maps, after, N, M, ALL, SUM) + behind
        grad_value = tl.dot(
            tl.trans(mixed, 0, 2, 1).to(key.dtype),
            grad_out,
            grad_value,
            input_precision='ieee',
            out_dtype=SUM)
        grad_maps = maps * (grad_maps - products[:, :, None])  # of the softmax
        grad_maps = mix(grad_maps, tl.trans(before), N, M, ALL, SUM) * scale
        grad_key = tl.dot(
            tl.trans(grad_maps, 0, 2, 1).to(key.dtype),
            query,
            grad_key,
            input_precision='ieee',
            out_dtype=SUM)
    where, exists = block_of(grad_qkv + image * tokens * 3 * wide + wide, first, tokens, 3 * wide,
                             M, HEADS, ALL, WIDTH, PADDED)
    tl.store(where, grad_key, exists)
    tl.store(where + wide, grad_value, exists)
