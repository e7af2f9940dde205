"""The operator's backward pass in three kernels; buffers as in `forward_kernels`.

row_terms (B·H, 5, N): each query's maximum, both streams' inverse weights, both denominators' gradients
grad_state (S, B·H, 2, D, E), grad_sums (S, B·H, 2, D): gradients of [a(k), b(k)]ᵀ v and of the sums of a(k) and b(k)
grad_power (B·H, blocks, D): each block of tokens' share of power's gradient
"""

import triton
import triton.language as tl

from .features import (
    UNSPECIALIZED,
    accumulate,
    dot,
    inverse_weights,
    load_tile,
    log2_size,
    operand,
    query_exponent,
    split_by_sign,
    store_tile,
    token_major,
    valid_keys,
)
from .forward_kernels import attend_block

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def query_gradient(
    grad, q, power, state, sums, peaks, counts, grad_q, grad_power, row_terms,
    grad_batch, grad_head, grad_row, grad_column, q_batch, q_head, q_row, q_column,
    power_batch, power_head, power_column,
    heads, tokens, blocks, key_count, log2_eps,
    D: tl.constexpr, E: tl.constexpr, HAS_MASK: tl.constexpr, TF32: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries' gradient, its share of power's, and what the state's gradient needs of each query."""
    head = (tl.program_id(0) // blocks).to(tl.int64)
    grad += head // heads * grad_batch + head % heads * grad_head
    q += head // heads * q_batch + head % heads * q_head
    power += head // heads * power_batch + head % heads * power_head
    state += head * (2 * D * E)
    sums += head * (2 * D)
    peaks += head * D
    count = tl.load(counts + head // heads) if HAS_MASK else key_count.to(tl.float32)
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    valid = rows < tokens

    same = tl.zeros([ROWS], tl.float32)
    opposite, maximum, grad_same, grad_opposite = same, same, same, same
    for start in range(0, E, VALUES):
        e = start + tl.arange(0, VALUES)
        first_stream = (e < (E + 1) // 2)[None, :]
        numerator, same, opposite, maximum = attend_block(
            q, rows, q_row, q_column, valid, e, power, power_column, state, sums, peaks,
            D, E, TF32, ROWS, CHANNELS, VALUES,
        )  # fmt: skip
        upstream = load_tile(grad, rows, grad_row, valid, e, grad_column, E)
        same, opposite = inverse_weights(same, opposite, count, log2_eps, maximum)
        inverse = tl.where(first_stream, same[:, None], opposite[:, None])
        share = operand(upstream * inverse, TF32) * (numerator * inverse)
        grad_same -= tl.sum(tl.where(first_stream, share, 0.0), 1)
        grad_opposite -= tl.sum(tl.where(first_stream, 0.0, share), 1)

    row_terms += head * 5 * tokens + rows
    tl.store(row_terms, maximum, mask=valid)
    tl.store(row_terms + tokens, same, mask=valid)
    tl.store(row_terms + 2 * tokens, opposite, mask=valid)
    tl.store(row_terms + 3 * tokens, grad_same, mask=valid)
    tl.store(row_terms + 4 * tokens, grad_opposite, mask=valid)

    for start in range(0, D, CHANNELS):
        d = start + tl.arange(0, CHANNELS)
        p = tl.load(power + d * power_column, mask=d < D, other=1.0)
        peak = tl.load(peaks + d, mask=d < D, other=0.0)
        sum_a = tl.load(sums + d, mask=d < D, other=0.0)[None, :]
        sum_b = tl.load(sums + D + d, mask=d < D, other=0.0)[None, :]
        grad_a = grad_same[:, None] * sum_a + grad_opposite[:, None] * sum_b
        grad_b = grad_same[:, None] * sum_b + grad_opposite[:, None] * sum_a
        for start_e in range(0, E, VALUES):
            e = start_e + tl.arange(0, VALUES)
            upstream = load_tile(grad, rows, grad_row, valid, e, grad_column, E)
            inverse = tl.where((e < (E + 1) // 2)[None, :], same[:, None], opposite[:, None])
            gradient = operand(upstream * inverse, TF32)
            upper = operand(load_tile(state, d, E, d < D, e, 1, E), TF32)
            lower = operand(load_tile(state + D * E, d, E, d < D, e, 1, E), TF32)
            grad_a += dot(gradient, tl.trans(upper), TF32)
            grad_b += dot(gradient, tl.trans(lower), TF32)
        x = load_tile(q, rows, q_row, valid, d, q_column, D)
        exponent, logs = query_exponent(x, p, peak)
        a, b = split_by_sign(tl.exp2(exponent - maximum[:, None]), x, TF32)
        weight = a * grad_a + b * grad_b
        store_tile(
            token_major(grad_q, head, heads, tokens, D), rows, heads * D, valid, d, input_gradient(weight, p, x), D
        )
        tl.store(grad_power + tl.program_id(0).to(tl.int64) * D + d, tl.sum(weight * logs, 0) * _LN2, mask=d < D)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def state_gradient(
    grad, q, power, peaks, row_terms, grad_state, grad_sums,
    grad_batch, grad_head, grad_row, grad_column, q_batch, q_head, q_row, q_column,
    power_batch, power_head, power_column,
    heads, tokens, chunk, chunks,
    D: tl.constexpr, E: tl.constexpr, TF32: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Sum one chunk of queries into a block of the state's gradient, uncrossed: that of [a(k), b(k)]ᵀ v itself."""
    head = (tl.program_id(0) // chunks).to(tl.int64)
    part = (tl.program_id(0) % chunks).to(tl.int64)
    grad += head // heads * grad_batch + head % heads * grad_head
    q += head // heads * q_batch + head % heads * q_head
    power += head // heads * power_batch + head % heads * power_head
    row_terms += head * 5 * tokens
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    e = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    first_stream = (e < (E + 1) // 2)[None, :]
    p = tl.load(power + d * power_column, mask=d < D, other=1.0)
    peak = tl.load(peaks + head * D + d, mask=d < D, other=0.0)

    upper = tl.zeros([CHANNELS, VALUES], tl.float32)
    lower = upper
    sum_a = tl.zeros([CHANNELS], tl.float32)
    sum_b = sum_a
    last = tl.minimum((part + 1) * chunk, tokens)
    for start in range(part * chunk, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        valid = rows < last
        maximum = tl.load(row_terms + rows, mask=valid, other=0.0)
        same = tl.load(row_terms + tokens + rows, mask=valid, other=0.0)[:, None]
        opposite = tl.load(row_terms + 2 * tokens + rows, mask=valid, other=0.0)[:, None]
        grad_same = tl.load(row_terms + 3 * tokens + rows, mask=valid, other=0.0)[:, None]
        grad_opposite = tl.load(row_terms + 4 * tokens + rows, mask=valid, other=0.0)[:, None]
        upstream = load_tile(grad, rows, grad_row, valid, e, grad_column, E)
        gradient = operand(upstream * tl.where(first_stream, same, opposite), TF32)
        x = load_tile(q, rows, q_row, valid, d, q_column, D)
        exponent, _ = query_exponent(x, p, peak)
        a, b = split_by_sign(tl.exp2(exponent - maximum[:, None]), x, TF32)
        upper = accumulate(upper, 1.0, tl.trans(a), gradient, TF32)
        lower = accumulate(lower, 1.0, tl.trans(b), gradient, TF32)
        sum_a += tl.sum(a * grad_same + b * grad_opposite, 0)
        sum_b += tl.sum(b * grad_same + a * grad_opposite, 0)

    place = part * (tl.num_programs(0) // chunks) + head
    grad_state += place * (2 * D * E)
    store_tile(grad_state, d, E, d < D, e, tl.where(first_stream, upper, lower), E)
    store_tile(grad_state + D * E, d, E, d < D, e, tl.where(first_stream, lower, upper), E)
    if tl.program_id(2) == 0:
        tl.store(grad_sums + place * (2 * D) + d, sum_a, mask=d < D)
        tl.store(grad_sums + place * (2 * D) + D + d, sum_b, mask=d < D)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def key_gradient(
    k, v, mask, power, peaks, grad_state, grad_sums, grad_k, grad_v, grad_power,
    k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, mask_batch, mask_row,
    power_batch, power_head, power_column,
    heads, tokens, blocks,
    D: tl.constexpr, E: tl.constexpr, HAS_MASK: tl.constexpr, TF32: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Compute one block of keys' and values' gradients and its share of power's."""
    head = (tl.program_id(0) // blocks).to(tl.int64)
    k += head // heads * k_batch + head % heads * k_head
    v += head // heads * v_batch + head % heads * v_head
    power += head // heads * power_batch + head % heads * power_head
    mask += head // heads * mask_batch
    grad_state += head * (2 * D * E)
    grad_sums += head * (2 * D)
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    valid = valid_keys(mask, rows, tokens, mask_row, HAS_MASK)

    for start in range(0, D, CHANNELS):
        d = start + tl.arange(0, CHANNELS)
        x, p, logs, a, b = key_features(
            k, rows, k_row, k_column, valid, d, power, power_column, peaks + head * D, D, TF32
        )
        zero = tl.zeros([ROWS, CHANNELS], tl.float32)
        grad_a = zero + tl.load(grad_sums + d, mask=d < D, other=0.0)[None, :]
        grad_b = zero + tl.load(grad_sums + D + d, mask=d < D, other=0.0)[None, :]
        for start_e in range(0, E, VALUES):
            e = start_e + tl.arange(0, VALUES)
            values = operand(load_tile(v, rows, v_row, valid, e, v_column, E), TF32)
            upper = operand(load_tile(grad_state, d, E, d < D, e, 1, E), TF32)
            lower = operand(load_tile(grad_state + D * E, d, E, d < D, e, 1, E), TF32)
            grad_a += dot(values, tl.trans(upper), TF32)
            grad_b += dot(values, tl.trans(lower), TF32)
        weight = a * grad_a + b * grad_b
        store_tile(
            token_major(grad_k, head, heads, tokens, D),
            rows,
            heads * D,
            rows < tokens,
            d,
            input_gradient(weight, p, x),
            D,
        )
        tl.store(grad_power + tl.program_id(0).to(tl.int64) * D + d, tl.sum(weight * logs, 0) * _LN2, mask=d < D)

    for start_e in range(0, E, VALUES):
        e = start_e + tl.arange(0, VALUES)
        grad_values = tl.zeros([ROWS, VALUES], tl.float32)
        for start in range(0, D, CHANNELS):
            d = start + tl.arange(0, CHANNELS)
            _, _, _, a, b = key_features(
                k, rows, k_row, k_column, valid, d, power, power_column, peaks + head * D, D, TF32
            )
            upper = operand(load_tile(grad_state, d, E, d < D, e, 1, E), TF32)
            lower = operand(load_tile(grad_state + D * E, d, E, d < D, e, 1, E), TF32)
            grad_values += dot(a, upper, TF32) + dot(b, lower, TF32)
        store_tile(token_major(grad_v, head, heads, tokens, E), rows, heads * E, rows < tokens, e, grad_values, E)


@triton.jit
def key_features(
    k, rows, k_row, k_column, valid, d, power, power_column, peaks, D: tl.constexpr, TF32: tl.constexpr
):  # fmt: skip
    """Return the keys, power, log2|k| less that of the channel's peak (0 where k is 0), a(k) and b(k)."""
    x = load_tile(k, rows, k_row, valid, d, k_column, D)
    p = tl.load(power + d * power_column, mask=d < D, other=1.0)
    peak = tl.load(peaks + d, mask=d < D, other=0.0)
    logs = tl.where(x == 0, 0.0, log2_size(x) - log2_size(peak)[None, :])
    a, b = split_by_sign(tl.exp2(p[None, :] * logs), x, TF32)
    return x, p, logs, a, b


@triton.jit
def input_gradient(weight, power, x):
    """Return x's gradient, weight being the feature times its own gradient; 0 where x is 0."""
    return tl.where(x == 0, 0.0, weight * power[None, :] / tl.where(x == 0, 1.0, x))
