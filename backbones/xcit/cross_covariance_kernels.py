"""Triton kernels of XCiT's cross-covariance attention; :mod:`.fused_gpu` launches them.

Shapes: ``B`` images, ``N`` tokens, ``h`` heads, ``d`` channels of a head. ``WIDTH`` is ``d``, and
``PADDED`` the power of two above it, since blocks must be powers of two. ``SUM`` is the precision
of sums. Pointers are to the first element, strides are those of tokens.
"""
import triton
import triton.language as tl


@triton.jit
def tokens_of(base, first, tokens, stride, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
              PADDED: tl.constexpr):
    """Where a block of tokens of one head lies, and which of it exists: (BLOCK, PADDED)."""
    rows = first + tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, PADDED)[None, :]
    return base + rows * stride + columns, (rows < tokens) & (columns < WIDTH)


@triton.jit
def map_of(WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Where a map of one head lies, and which of it exists: (PADDED, PADDED)."""
    rows = tl.arange(0, PADDED)[:, None]
    columns = tl.arange(0, PADDED)[None, :]
    return rows * WIDTH + columns, (rows < WIDTH) & (columns < WIDTH)


@triton.jit
def products_kernel(a, b, products, squares, tokens, a_stride, b_stride, chunk, SUM: tl.constexpr,
                    NORMS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
                    PADDED: tl.constexpr):
    """``a^T b`` of a chunk of tokens, and if ``NORMS`` the squares of their columns."""
    part, head, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    place = (image * tl.num_programs(1) + head) * tl.num_programs(0) + part
    a += image * tokens * a_stride + head * WIDTH
    b += image * tokens * b_stride + head * WIDTH
    total = tl.zeros((PADDED, PADDED), SUM)
    squares_a = tl.zeros((PADDED, ), SUM)
    squares_b = tl.zeros((PADDED, ), SUM)
    for first in range(part * chunk, tl.minimum(part * chunk + chunk, tokens), BLOCK):
        where_a, exists = tokens_of(a, first, tokens, a_stride, BLOCK, WIDTH, PADDED)
        where_b, _ = tokens_of(b, first, tokens, b_stride, BLOCK, WIDTH, PADDED)
        x = tl.load(where_a, exists, 0.)
        y = tl.load(where_b, exists, 0.)
        total = tl.dot(tl.trans(x), y, total, input_precision='ieee', out_dtype=SUM)
        if NORMS:
            squares_a += tl.sum(x.to(SUM) * x.to(SUM), 0)
            squares_b += tl.sum(y.to(SUM) * y.to(SUM), 0)
    where, exists = map_of(WIDTH, PADDED)
    tl.store(products + place * WIDTH * WIDTH + where, total, exists)
    if NORMS:
        column = tl.arange(0, PADDED)
        squares += place * 2 * WIDTH + column
        tl.store(squares, squares_a, column < WIDTH)
        tl.store(squares + WIDTH, squares_b, column < WIDTH)


@triton.jit
def softmax(cosines, temperature, exists):
    """Rows of scaled cosines to attention; what does not exist is 0."""
    logits = tl.where(exists, cosines * temperature, -1e30)
    powers = tl.where(exists, tl.exp(logits - tl.max(logits, 1)[:, None]), 0.)
    sums = tl.sum(powers, 1)
    return powers / tl.where(sums > 0., sums, 1.)[:, None]


@triton.jit
def attention_kernel(products, squares, temperature, attention, cosines, norms, parts, eps,
                     SUM: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Sums of all chunks of a head to its attention; keeps what the gradients need."""
    head = tl.program_id(0)
    place = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + head
    where, exists = map_of(WIDTH, PADDED)
    column = tl.arange(0, PADDED)
    total = tl.zeros((PADDED, PADDED), SUM)
    squares_q = tl.zeros((PADDED, ), SUM)
    squares_k = tl.zeros((PADDED, ), SUM)
    for part in range(parts):
        chunk = place * parts + part
        total += tl.load(products + chunk * WIDTH * WIDTH + where, exists, 0.)
        given = squares + chunk * 2 * WIDTH + column
        squares_q += tl.load(given, column < WIDTH, 0.)
        squares_k += tl.load(given + WIDTH, column < WIDTH, 0.)
    norms_q = tl.maximum(tl.sqrt(squares_q), eps)
    norms_k = tl.maximum(tl.sqrt(squares_k), eps)
    found = total / norms_q[:, None] / norms_k[None, :]
    weights = softmax(found, tl.load(temperature + head), exists)
    tl.store(attention + place * WIDTH * WIDTH + where, weights, exists)
    tl.store(cosines + place * WIDTH * WIDTH + where, found, exists)
    norms += place * 2 * WIDTH + column
    tl.store(norms, norms_q, column < WIDTH)
    tl.store(norms + WIDTH, norms_k, column < WIDTH)


@triton.jit
def values_kernel(values, attention, out, tokens, stride, SUM: tl.constexpr, BLOCK: tl.constexpr,
                  WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A block of values times the attention of its head."""
    block, head, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1)
    values += image * tokens * stride + head * WIDTH
    out += image * tokens * heads * WIDTH + head * WIDTH
    where, exists = map_of(WIDTH, PADDED)
    attention += (image * heads + head) * WIDTH * WIDTH
    weights = tl.load(attention + where, exists, 0.)
    where, exists = tokens_of(values, block * BLOCK, tokens, stride, BLOCK, WIDTH, PADDED)
    given = tl.load(where, exists, 0.)
    found = tl.dot(given, tl.trans(weights), input_precision='ieee', out_dtype=SUM)
    where, exists = tokens_of(out, block * BLOCK, tokens, heads * WIDTH, BLOCK, WIDTH, PADDED)
    tl.store(where, found, exists)


@triton.jit
def map_gradients_kernel(products, cosines, norms, temperature, attention, matrix, scale, along,
                         grad_temperature, parts, eps, SUM: tl.constexpr, WIDTH: tl.constexpr,
                         PADDED: tl.constexpr):
    """Of a head's map, from the sums ``grad^T v`` of all chunks.

    With ``E = scale * matrix``, the gradients of queries are ``E k - along q``, and alike for keys.
    The matrix's largest value is 1: half precision cannot hold what a loss scale may make of it.
    """
    head = tl.program_id(0)
    place = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + head
    where, exists = map_of(WIDTH, PADDED)
    column = tl.arange(0, PADDED)
    grad = tl.zeros((PADDED, PADDED), SUM)
    for part in range(parts):
        grad += tl.load(products + (place * parts + part) * WIDTH * WIDTH + where, exists, 0.)
    factor = tl.load(temperature + head)
    found = tl.load(cosines + place * WIDTH * WIDTH + where, exists, 0.)
    weights = softmax(found, factor, exists)
    tl.store(attention + place * WIDTH * WIDTH + where, weights, exists)
    grad = weights * (grad - tl.sum(grad * weights, 1)[:, None])  # of the logits
    tl.store(grad_temperature + place, tl.sum(tl.sum(found * grad, 1), 0))

    norms += place * 2 * WIDTH + column
    norms_q = tl.load(norms, column < WIDTH, 1.)
    norms_k = tl.load(norms + WIDTH, column < WIDTH, 1.)
    grad = grad * factor / norms_q[:, None] / norms_k[None, :]
    largest = tl.max(tl.max(tl.abs(grad), 1), 0)
    largest = tl.where(largest > 0., largest, 1.)
    rounded = (grad / largest).to(matrix.dtype.element_ty)
    tl.store(matrix + place * WIDTH * WIDTH + where, rounded, exists)
    tl.store(scale + place, largest)
    found *= rounded.to(SUM) * largest  # as rounded, so that what should cancel does
    along_q = tl.sum(found * norms_k[None, :], 1) / norms_q
    along_k = tl.sum(found * norms_q[:, None], 0) / norms_k
    along += place * 2 * WIDTH + column  # a norm at its lower bound is a constant
    tl.store(along, tl.where(norms_q > eps, along_q, 0.), column < WIDTH)
    tl.store(along + WIDTH, tl.where(norms_k > eps, along_k, 0.), column < WIDTH)


@triton.jit
def token_gradients_kernel(qkv, grad, attention, matrix, scale, along, grad_qkv, tokens,
                           SUM: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
                           PADDED: tl.constexpr):
    """Of a block of queries, keys and values."""
    block, head, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    width = tl.num_programs(1) * WIDTH
    place = image * tl.num_programs(1) + head
    qkv += image * tokens * 3 * width + head * WIDTH
    grad_qkv += image * tokens * 3 * width + head * WIDTH
    grad += image * tokens * width + head * WIDTH
    where, exists = map_of(WIDTH, PADDED)
    where += place * WIDTH * WIDTH
    weights = tl.load(attention + where, exists, 0.)
    mixing = tl.load(matrix + where, exists, 0.)
    column = tl.arange(0, PADDED)
    along += place * 2 * WIDTH + column
    along_q = tl.load(along, column < WIDTH, 0.)
    along_k = tl.load(along + WIDTH, column < WIDTH, 0.)
    factor = tl.load(scale + place)

    first = block * BLOCK
    where, exists = tokens_of(grad, first, tokens, width, BLOCK, WIDTH, PADDED)
    grad_v = tl.dot(tl.load(where, exists, 0.), weights, input_precision='ieee', out_dtype=SUM)
    where, exists = tokens_of(qkv, first, tokens, 3 * width, BLOCK, WIDTH, PADDED)
    q = tl.load(where, exists, 0.)
    k = tl.load(where + width, exists, 0.)
    grad_q = tl.dot(k, tl.trans(mixing), input_precision='ieee', out_dtype=SUM)
    grad_k = tl.dot(q, mixing, input_precision='ieee', out_dtype=SUM)
    where, exists = tokens_of(grad_qkv, first, tokens, 3 * width, BLOCK, WIDTH, PADDED)
    tl.store(where, grad_q * factor - q.to(SUM) * along_q[None, :], exists)
    tl.store(where + width, grad_k * factor - k.to(SUM) * along_k[None, :], exists)
    tl.store(where + 2 * width, grad_v, exists)
