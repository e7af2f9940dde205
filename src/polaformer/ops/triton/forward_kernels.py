"""The operator's forward pass in three kernels. A program owns one block of tokens or one block of the state; nothing is added atomically.

Letters as in `reference`: N queries, M keys, D channels of q and k, E channels of v; S the chunks that tokens are cut into so
that few heads still fill a GPU. Powers are taken in base 2: f(x) = exp2(p log2|x| − maximum).

Buffers, contiguous float32, one for each (batch, head):
    peaks (S, B·H, D): largest |k| of each channel
    state (S, B·H, 2, D, E): [a(k), b(k)]ᵀ v in the scale of the peaks, already crossed: [A₁, B₂] and [B₁, A₂]
    sums (S, B·H, 2, D): Σ_j a(k_j), Σ_j b(k_j)
"""

import triton
import triton.language as tl

from .features import (
    UNSPECIALIZED,
    accumulate,
    dot,
    finite,
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


@triton.jit(do_not_specialize=UNSPECIALIZED)
def key_state(
    k, v, mask, power, state, sums, peaks,
    k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, mask_batch, mask_row,
    power_batch, power_head, power_column,
    heads, tokens, chunk, chunks,
    D: tl.constexpr, E: tl.constexpr, HAS_MASK: tl.constexpr, TF32: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Sum one chunk of keys into a block of state; the sums are rescaled whenever a channel's peak grows."""
    head = (tl.program_id(0) // chunks).to(tl.int64)
    part = (tl.program_id(0) % chunks).to(tl.int64)
    k += head // heads * k_batch + head % heads * k_head
    v += head // heads * v_batch + head % heads * v_head
    power += head // heads * power_batch + head % heads * power_head
    mask += head // heads * mask_batch
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    e = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    p = tl.load(power + d * power_column, mask=d < D, other=1.0)

    peak = tl.zeros([CHANNELS], tl.float32)
    sum_a, sum_b = peak, peak
    state_a = tl.zeros([CHANNELS, VALUES], tl.float32)
    state_b = state_a
    last = tl.minimum((part + 1) * chunk, tokens)
    for start in range(part * chunk, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        valid = valid_keys(mask, rows, last, mask_row, HAS_MASK)
        x = load_tile(k, rows, k_row, valid, d, k_column, D)
        values = operand(load_tile(v, rows, v_row, valid, e, v_column, E), TF32)
        grown = tl.maximum(peak, tl.max(tl.abs(x), 0))
        decay = tl.where(peak > 0, tl.exp2(p * (log2_size(peak) - log2_size(grown))), 0.0)
        feature = tl.exp2(p[None, :] * (log2_size(x) - log2_size(grown)[None, :]))
        a, b = split_by_sign(feature, x, TF32)
        state_a = accumulate(state_a, decay[:, None], tl.trans(a), values, TF32)
        state_b = accumulate(state_b, decay[:, None], tl.trans(b), values, TF32)
        sum_a = sum_a * decay + tl.sum(a, 0)
        sum_b = sum_b * decay + tl.sum(b, 0)
        peak = grown

    place = part * (tl.num_programs(0) // chunks) + head
    first_stream = (e < (E + 1) // 2)[None, :]
    state += place * (2 * D * E)
    store_tile(state, d, E, d < D, e, tl.where(first_stream, state_a, state_b), E)
    store_tile(state + D * E, d, E, d < D, e, tl.where(first_stream, state_b, state_a), E)
    if tl.program_id(2) == 0:
        tl.store(sums + place * (2 * D) + d, sum_a, mask=d < D)
        tl.store(sums + place * (2 * D) + D + d, sum_b, mask=d < D)
        tl.store(peaks + place * D + d, peak, mask=d < D)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def merge_state(
    power, part_state, part_sums, part_peaks, state, sums, peaks, power_batch, power_head, power_column, heads, chunks,
    D: tl.constexpr, E: tl.constexpr, PARTS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Bring one channel of all chunks' states to its largest peak and add them, always in the same order."""
    head = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0)
    d = tl.program_id(1)
    e = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    p = tl.load(power + head // heads * power_batch + head % heads * power_head + d * power_column)
    peak = 0.0
    for start in range(0, chunks, PARTS):
        parts = start + tl.arange(0, PARTS)
        peak = tl.maximum(
            peak, tl.max(tl.load(part_peaks + (parts * count + head) * D + d, mask=parts < chunks, other=0.0))
        )

    upper = tl.zeros([VALUES], tl.float32)
    lower = upper
    sum_a = tl.zeros([PARTS], tl.float32)
    sum_b = sum_a
    for start in range(0, chunks, PARTS):
        parts = start + tl.arange(0, PARTS)
        inside = parts < chunks
        place = parts * count + head
        part_peak = tl.load(part_peaks + place * D + d, mask=inside, other=0.0)
        decay = tl.where(part_peak > 0, tl.exp2(p * (log2_size(part_peak) - log2_size(peak))), 0.0)
        places = part_state + (place * (2 * D * E) + d * E)[:, None] + e[None, :]
        both = inside[:, None] & (e < E)[None, :]
        upper += tl.sum(decay[:, None] * tl.load(places, mask=both, other=0.0), 0)
        lower += tl.sum(decay[:, None] * tl.load(places + D * E, mask=both, other=0.0), 0)
        sum_a += decay * tl.load(part_sums + place * (2 * D) + d, mask=inside, other=0.0)
        sum_b += decay * tl.load(part_sums + place * (2 * D) + D + d, mask=inside, other=0.0)

    state += head * (2 * D * E) + d * E + e
    tl.store(state, upper, mask=e < E)
    tl.store(state + D * E, lower, mask=e < E)
    if tl.program_id(2) == 0:
        tl.store(sums + head * (2 * D) + d, tl.sum(sum_a, 0))
        tl.store(sums + head * (2 * D) + D + d, tl.sum(sum_b, 0))
        tl.store(peaks + head * D + d, peak)


@triton.jit
def attend_block(
    q, rows, q_row, q_column, valid, e, power, power_column, state, sums, peaks,
    D: tl.constexpr, E: tl.constexpr, TF32: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Return the numerators of value channels `e`, both streams' sums of weights, and the queries' maxima.

    Channels are taken block by block, and what was summed is rescaled whenever a query's maximum grows.
    """
    numerator = tl.zeros([ROWS, VALUES], tl.float32)
    same = tl.zeros([ROWS], tl.float32)
    opposite = same
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    for start in range(0, D, CHANNELS):
        d = start + tl.arange(0, CHANNELS)
        p = tl.load(power + d * power_column, mask=d < D, other=1.0)
        peak = tl.load(peaks + d, mask=d < D, other=0.0)
        sum_a = tl.load(sums + d, mask=d < D, other=0.0)[None, :]
        sum_b = tl.load(sums + D + d, mask=d < D, other=0.0)[None, :]
        upper = operand(load_tile(state, d, E, d < D, e, 1, E), TF32)
        lower = operand(load_tile(state + D * E, d, E, d < D, e, 1, E), TF32)
        x = load_tile(q, rows, q_row, valid, d, q_column, D)
        exponent, _ = query_exponent(x, p, peak)
        grown = tl.maximum(maximum, tl.max(exponent, 1))
        decay = tl.exp2(maximum - finite(grown))
        a, b = split_by_sign(tl.exp2(exponent - finite(grown)[:, None]), x, TF32)
        numerator = numerator * decay[:, None] + (dot(a, upper, TF32) + dot(b, lower, TF32))
        same = same * decay + tl.sum(a * sum_a + b * sum_b, 1)
        opposite = opposite * decay + tl.sum(a * sum_b + b * sum_a, 1)
        maximum = grown
    return numerator, same, opposite, finite(maximum)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def query_output(
    q, power, state, sums, peaks, counts, output,
    q_batch, q_head, q_row, q_column, power_batch, power_head, power_column,
    heads, tokens, blocks, key_count, log2_eps,
    D: tl.constexpr, E: tl.constexpr, HAS_MASK: tl.constexpr, TF32: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries' output in one block of value channels."""
    head = (tl.program_id(0) // blocks).to(tl.int64)
    q += head // heads * q_batch + head % heads * q_head
    power += head // heads * power_batch + head % heads * power_head
    count = tl.load(counts + head // heads) if HAS_MASK else key_count.to(tl.float32)
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    e = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    numerator, same, opposite, maximum = attend_block(
        q, rows, q_row, q_column, rows < tokens, e, power, power_column,
        state + head * (2 * D * E), sums + head * (2 * D), peaks + head * D, D, E, TF32, ROWS, CHANNELS, VALUES,
    )  # fmt: skip
    same, opposite = inverse_weights(same, opposite, count, log2_eps, maximum)
    inverse = tl.where((e < (E + 1) // 2)[None, :], same[:, None], opposite[:, None])
    store_tile(token_major(output, head, heads, tokens, E), rows, heads * E, rows < tokens, e, numerator * inverse, E)
