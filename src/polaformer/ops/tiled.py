"""Polarity-aware linear attention by PyTorch calls on tiles that stay in a processor's cache.

Letters: B batch, H heads, N queries, M keys, D channels of q and k, E channels of v, E₁ = ⌈E/2⌉, T tokens of a tile, G heads
of a group, over all its batch entries.

The formulas are those of `reference`, with powers of two for exponentials, in phases that each walk over the tokens of a
group of heads:
    channel_maxima    p log₂ max_j |k_j|, of each channel
    accumulate        [A, A'; B, B'] = Σ_j [a(k_j); b(k_j)] [v_j, 1], the sums, taken at given maxima
    attend            [num₁, num₂, den₁, den₂] = [a(q), b(q)] [[A₁, B₂, A', B'], [B₁, A₂, B', A']], the mixed sums
    query_gradients   those of q, power and the sums, from the output's
    key_gradients     those of k, v and power, from the sums'
A phase computes the features it needs anew: beyond inputs and outputs it holds some buffers of a tile's size, and all that
queries need to know of the keys has the size of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .layout import empty_token_major
from .tiles import Group, Scratch, head_groups, token_tiles

# exp(±bound) stays a normal number of the dtype with room for a sum over keys.
_EPS_EXPONENT_BOUND = {torch.float32: 80.0, torch.float64: 600.0}
_LN2 = math.log(2)


class State(NamedTuple):
    """All that queries need to know of the keys, in the compute dtype."""

    maxima: Tensor  # (B, H, 1, D), −∞ where all keys are 0
    sums: Tensor  # (B, H, 2D, E + 1)
    count: Tensor  # (B, 1, 1, 1)


class _Features(NamedTuple):
    """Of one tile, in buffers; the last two only where they are kept for the gradient."""

    both: Tensor  # (G, T, 2D): [a(x), b(x)] in the tile's scale
    log: Tensor  # (·, ·, T, D): log₂|x|
    magnitude: Tensor  # (·, ·, T, D): |x|


def forward(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> Tensor:
    """Return the attention output; arguments as in `polaformer.pola_attention`, already checked."""
    with torch.autocast(q.device.type, enabled=False):
        full = full_power(q, k, v, power)
        scratch = Scratch(full)
        output = empty_token_major(v, q.shape[2])
        for group in groups(q, k, v):
            state = _state(k[group], v[group], full[group], padding_of(key_padding_mask, group), scratch)
            attend(output[group], q[group], full[group], state, eps, scratch)
        return output


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and power for the output gradient `grad` (B, H, N, E)."""
    with torch.autocast(q.device.type, enabled=False):
        full = full_power(q, k, v, power)
        scratch = Scratch(full)
        grad_q, grad_k, grad_v = (empty_token_major(x, x.shape[2]) for x in (q, k, v))
        slopes = torch.zeros_like(full, memory_format=torch.contiguous_format)
        for group in groups(q, k, v):
            p, hidden = full[group], padding_of(key_padding_mask, group)
            state = _state(k[group], v[group], p, hidden, scratch)
            grad_sums = query_gradients(grad_q[group], slopes[group], grad[group], q[group], p, state, eps, scratch)
            written = grad_k[group], grad_v[group], slopes[group]
            key_gradients(*written, grad_sums, state.maxima, k[group], v[group], p, hidden, scratch)
        return grad_q, grad_k, grad_v, power_gradient(slopes, full, power)


def unusable_reason() -> None:
    """Return None: it works on every machine."""


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> None:
    """Return None: it takes all that the operator takes."""


def full_power(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    """Expand power to (B, H, 1, D) in the compute dtype: float64 if any input is float64, else float32."""
    dtype = torch.float64 if torch.float64 in (q.dtype, k.dtype, v.dtype, power.dtype) else torch.float32
    power = power.unsqueeze(-2) if power.ndim == 2 else power
    return power.to(dtype).expand(q.shape[0], q.shape[1], 1, q.shape[3])


def groups(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Group]:
    """Cut batch and heads into the groups that a phase takes at a time."""
    return head_groups(q.shape[0], q.shape[1], max(q.shape[2], k.shape[2]) * max(q.shape[3], v.shape[3]))


def padding_of(key_padding_mask: Tensor | None, group: Group) -> Tensor | None:
    """Return the mask of a group in the dimensions of its keys: (B, 1, M, 1)."""
    return None if key_padding_mask is None else key_padding_mask[group[0], None, :, None]


def power_gradient(slopes: Tensor, full: Tensor, power: Tensor) -> Tensor:
    """Turn what the phases summed up beside the full power into the gradient of power, in its shape and dtype."""
    shape = (power.shape[0], 1, power.shape[1]) if power.ndim == 2 else power.shape
    return (slopes * _LN2 / full).sum_to_size(shape).reshape(power.shape).to(power.dtype)


def channel_maxima(k: Tensor, power: Tensor, padding: Tensor | None, scratch: Scratch) -> Tensor:
    """Return p log₂ max_j |k_j|, (B, H, 1, D), −∞ where all keys are 0 or padded."""
    largest = None
    for x, hidden in token_tiles(k, padding):
        x = scratch.load("x", x, hidden)
        here = torch.abs(x, out=scratch.take("exponents", *x.shape)).amax(dim=-2, keepdim=True)
        largest = here if largest is None else torch.maximum(largest, here)
    assert largest is not None  # there is at least one key
    return largest.log2_().mul_(power)


def count_keys(k: Tensor, padding: Tensor | None, power: Tensor) -> Tensor:
    """Return the number of keys that are not padded, (B, 1, 1, 1)."""
    if padding is None:
        return power.new_full((k.shape[0], 1, 1, 1), k.shape[2])
    return k.shape[2] - padding.sum(dim=-2, keepdim=True).to(power.dtype)


def empty_sums(k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    """Return the sums over no key."""
    return power.new_zeros((*k.shape[:2], 2 * k.shape[3], v.shape[3] + 1))


def rescale(sums: Tensor, maxima: Tensor, larger: Tensor) -> None:
    """Turn sums taken at `maxima` into those taken at maxima at least as large."""
    factor = torch.exp2(finite(maxima) - finite(larger))
    sums *= torch.cat([factor, factor], dim=-1).mT


def accumulate(
    sums: Tensor, maxima: Tensor, k: Tensor, v: Tensor, power: Tensor, padding: Tensor | None, scratch: Scratch
) -> None:
    """Add these keys to the sums, taken at `maxima`, (B, H, 1, D), which must be theirs or larger."""
    shift = -finite(maxima)
    weighted, plain = sums.flatten(0, 1).split([v.shape[3], 1], dim=-1)
    for x, values, hidden in token_tiles(k, v, padding):
        features = _key_features(scratch.load("x", x, hidden), power, shift, scratch)
        values = scratch.load("values", values, hidden).flatten(0, 1)
        weighted += torch.bmm(features.both.mT, values, out=scratch.take("part", *weighted.shape))
        plain += features.both.sum(dim=-2).unsqueeze(-1)


def attend(output: Tensor, q: Tensor, power: Tensor, state: State, eps: float, scratch: Scratch) -> None:
    """Write the attention of queries q, (B, H, N, D), into the output, (B, H, N, E)."""
    mixed = _mix(state.sums).flatten(0, 1)
    log_eps = _log_eps(eps, state.count)
    sizes = _stream_sizes(output)
    for x, *outputs in token_tiles(q, *output.split(sizes, dim=-1)):
        features, scaled_eps = _query_features(scratch.load("x", x, None), power, state.maxima, log_eps, scratch)
        *sums, weights = _products(features.both, mixed, (*sizes, 2), x.shape, scratch)
        denominators = weights.add_(scaled_eps).split(1, dim=-1)
        for stream, numerator, denominator in zip(outputs, sums, denominators):
            torch.div(numerator, denominator, out=stream)


def query_gradients(
    grad_q: Tensor, slopes: Tensor, grad: Tensor, q: Tensor, power: Tensor, state: State, eps: float, scratch: Scratch
) -> Tensor:
    """Write q's gradient, add the queries' part to the slopes, (B, H, 1, D), and return the gradient of the sums."""
    mixed = _mix(state.sums)
    steep = _times_power(mixed, power).flatten(0, 1).mT
    grad_mixed = torch.zeros_like(mixed)
    total, mixed = grad_mixed.flatten(0, 1), mixed.flatten(0, 1)
    log_eps = _log_eps(eps, state.count)
    sizes = _stream_sizes(grad)
    for into, x, *grads in token_tiles(grad_q, q, *grad.split(sizes, dim=-1)):
        features, scaled_eps = _query_features(
            scratch.load("x", x, None), power, state.maxima, log_eps, scratch, keep=True
        )
        *sums, weights = _products(features.both, mixed, (*sizes, 2), x.shape, scratch)
        inverse = (weights + scaled_eps).reciprocal_()
        # A stream without any weight (one-signed q and k, no valid key) passes no gradient on, but ε alone in the
        # denominator can make grad / ε infinite there. Weights that ε only swamps still count.
        inverse.masked_fill_(weights == 0, 0)
        grad_both = scratch.take("grad_product", *x.shape[:3], sum(sizes) + 2)
        views = scratch.split("grad_product", (*sizes, 1, 1), *grad_both.shape)
        parts = zip(grads, sums, inverse.split(1, dim=-1), views[:2], views[2:])
        for given, product, reciprocal, along, across in parts:
            torch.mul(given, reciprocal, out=along)
            torch.mul(product.mul_(along).sum(dim=-1, keepdim=True), reciprocal, out=across).neg_()

        grad_both = grad_both.flatten(0, 1)
        total += torch.bmm(features.both.mT, grad_both, out=scratch.take("part", *total.shape))
        grad_features = torch.bmm(grad_both, steep, out=scratch.take("grad_features", *features.both.shape))
        _through_power(into, slopes, features, grad_features, scratch)
    return _unmix(grad_mixed)


def key_gradients(
    grad_k: Tensor,
    grad_v: Tensor,
    slopes: Tensor,
    grad_sums: Tensor,
    maxima: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    padding: Tensor | None,
    scratch: Scratch,
) -> None:
    """Write the gradients of k and v and add the keys' part to the slopes, (B, H, 1, D), from the gradient of the sums."""
    shift = -finite(maxima)
    weighted = grad_sums.flatten(0, 1)[..., :-1]
    steep, steep_weights = _times_power(grad_sums, power).flatten(0, 1).mT.split([v.shape[3], 1], dim=-2)
    for into_k, into_v, x, values, hidden in token_tiles(grad_k, grad_v, k, v, padding):
        features = _key_features(scratch.load("x", x, hidden), power, shift, scratch, keep=True)
        values = scratch.load("values", values, hidden).flatten(0, 1)
        grad_values = torch.bmm(features.both, weighted, out=scratch.take("grad_values", *values.shape))
        into_v.copy_(grad_values.view(into_v.shape))
        grad_features = scratch.take("grad_features", *features.both.shape)
        torch.baddbmm(steep_weights, values, steep, out=grad_features)
        _through_power(into_k, slopes, features, grad_features, scratch)


def finite(maxima: Tensor) -> Tensor:
    """Replace −∞, the maximum over nothing but zeros, by the lowest number, which can be taken from −∞ in exponents."""
    return maxima.clamp(min=torch.finfo(maxima.dtype).min)


def _state(k: Tensor, v: Tensor, power: Tensor, padding: Tensor | None, scratch: Scratch) -> State:
    maxima = channel_maxima(k, power, padding, scratch)
    sums = empty_sums(k, v, power)
    accumulate(sums, maxima, k, v, power, padding, scratch)
    return State(maxima, sums, count_keys(k, padding, power))


def _key_features(k: Tensor, power: Tensor, shift: Tensor, scratch: Scratch, keep: bool = False) -> _Features:
    log, magnitude, exponents = _exponents(k, power, shift, scratch, keep)
    return _Features(_split_by_sign(exponents, k, scratch), log, magnitude)


def _query_features(
    q: Tensor, power: Tensor, maxima: Tensor, log_eps: Tensor, scratch: Scratch, keep: bool = False
) -> tuple[_Features, Tensor]:
    """Return the features, each query's largest 1, and c ε in each query's scale, (·, ·, T, 1)."""
    log, magnitude, exponents = _exponents(q, power, maxima, scratch, keep)
    # A channel in which every key is zero (maximum −∞) says nothing and sets no query's scale either.
    scale = finite(exponents.amax(dim=-1, keepdim=True))
    features = _Features(_split_by_sign(exponents.sub_(scale), q, scratch), log, magnitude)
    # Where q and k are one-signed the opposite stream is exactly 0: ε must stay above 0 there or it gives 0/0.
    bound = _EPS_EXPONENT_BOUND[scale.dtype]
    return features, torch.add(log_eps, scale, alpha=-_LN2).clamp_(-bound, bound).exp_()


def _exponents(x: Tensor, power: Tensor, shift: Tensor, scratch: Scratch, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    # Three buffers where one will do are a tenth of the time of forward.
    names = ("magnitude", "log") if keep else ("exponents", "exponents")
    magnitude, log = (scratch.take(name, *x.shape) for name in names)
    torch.log2(torch.abs(x, out=magnitude), out=log)
    return log, magnitude, torch.addcmul(shift, log, power, out=scratch.take("exponents", *x.shape))


def _split_by_sign(exponents: Tensor, x: Tensor, scratch: Scratch) -> Tensor:
    scratch.exp2_("exponents", exponents.numel())
    channels = x.shape[-1]
    positive, negative = scratch.split("both", (channels, channels), *x.shape[:-1], 2 * channels)
    torch.ops.aten.threshold_backward.grad_input(exponents, x, 0, grad_input=positive)  # 0 where x ≤ 0
    torch.sub(exponents, positive, out=negative)
    return scratch.take("both", x.shape[0] * x.shape[1], x.shape[2], 2 * channels)


def _products(
    features: Tensor, mixed: Tensor, sizes: tuple[int, ...], shape: torch.Size, scratch: Scratch
) -> tuple[Tensor, ...]:
    torch.bmm(features, mixed, out=scratch.take("product", *features.shape[:2], mixed.shape[-1]))
    return scratch.split("product", sizes, *shape[:3], mixed.shape[-1])


def _log_eps(eps: float, count: Tensor) -> Tensor:
    return count.clamp(min=1).log_().add_(math.log(eps))


def _stream_sizes(x: Tensor) -> tuple[int, int]:
    first = (x.shape[-1] + 1) // 2
    return first, x.shape[-1] - first


def _mix(sums: Tensor) -> Tensor:
    """Return [[A₁, B₂, A', B'], [B₁, A₂, B', A']]."""
    swapped = sums.roll(sums.shape[-2] // 2, dims=-2)
    cut = sums.shape[-1] // 2
    return torch.cat([sums[..., :cut], swapped[..., cut:-1], sums[..., -1:], swapped[..., -1:]], dim=-1)


def _unmix(grad: Tensor) -> Tensor:
    """Return the gradient of the sums for that of the mixed sums."""
    swapped = grad.roll(grad.shape[-2] // 2, dims=-2)
    cut = (grad.shape[-1] - 1) // 2
    return torch.cat([grad[..., :cut], swapped[..., cut:-2], grad[..., -2:-1] + swapped[..., -1:]], dim=-1)


def _times_power(sums: Tensor, power: Tensor) -> Tensor:
    return sums * torch.cat([power, power], dim=-1).mT


def _through_power(grad: Tensor, slopes: Tensor, features: _Features, steep: Tensor, scratch: Scratch) -> None:
    """Write the gradient of x and add to the slopes p times that of p in powers of two, with `steep` p ∂/∂features."""
    shape = features.log.shape
    steep.mul_(features.both)
    positive, negative = scratch.split("grad_features", (shape[3], shape[3]), *shape[:3], 2 * shape[3])
    number = torch.finfo(steep.dtype)
    # What is multiplied is 0 where x is 0.
    log = features.log.clamp_(min=number.min)
    magnitude = features.magnitude.clamp_(min=number.tiny)
    weight = scratch.take("exponents", *shape)
    torch.div(torch.sub(positive, negative, out=weight), magnitude, out=grad)
    slopes += torch.add(positive, negative, out=weight).mul_(log).sum(dim=-2, keepdim=True)
