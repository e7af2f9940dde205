"""Polarity-aware linear attention by PyTorch calls on tiles that stay in a processor's cache.

Letters: B batch, H heads, N queries, M keys, D channels of q and k, E channels of v, E₁ = ⌈E/2⌉, T tokens of a tile, G its
heads, over all its batch entries.

The formulas are those of `reference`, with powers of two for exponentials, in phases that each walk over a tensor's tiles:
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

from .tiles import Group, Scratch, Tile, head_groups, tiles

# exp(±bound) stays a normal number of the dtype with room for a sum over keys.
_EPS_EXPONENT_BOUND = {torch.float32: 80.0, torch.float64: 600.0}
_LN2 = math.log(2)


class State(NamedTuple):
    """All that queries need to know of the keys, in the compute dtype."""

    maxima: Tensor  # (B, H, 1, D), −∞ where all keys are 0
    sums: Tensor  # (B, H, 2D, E + 1)
    count: Tensor  # (B, 1, 1, 1)


class _Features(NamedTuple):
    """Of one tile, in buffers."""

    both: Tensor  # (G, T, 2D): [a(x), b(x)] in the tile's scale
    log: Tensor  # (·, ·, T, D): log₂|x|
    magnitude: Tensor  # (·, ·, T, D): |x|


def forward(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> Tensor:
    """Return the attention output; arguments as in `polaformer.pola_attention`, already checked."""
    with torch.autocast(q.device.type, enabled=False):
        full = full_power(q, k, v, power)
        padding = padding_of(key_padding_mask)
        scratch = Scratch(full)
        output = v.new_empty((*q.shape[:3], v.shape[3]))
        for group in _groups(q, k, v):
            state = _state(k[group], v[group], full[group], _part(padding, group), scratch)
            attend(output[group], q[group], full[group], state, eps, scratch)
        return output


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and power for the output gradient `grad` (B, H, N, E)."""
    with torch.autocast(q.device.type, enabled=False):
        full = full_power(q, k, v, power)
        padding = padding_of(key_padding_mask)
        scratch = Scratch(full)
        grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        slopes = torch.zeros_like(full, memory_format=torch.contiguous_format)
        for group in _groups(q, k, v):
            p, hidden = full[group], _part(padding, group)
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


def padding_of(key_padding_mask: Tensor | None) -> Tensor | None:
    """Give the mask the dimensions of k: (B, 1, M, 1)."""
    return None if key_padding_mask is None else key_padding_mask[:, None, :, None]


def power_gradient(slopes: Tensor, full: Tensor, power: Tensor) -> Tensor:
    """Turn what the phases summed up beside the full power into the gradient of power, in its shape and dtype."""
    shape = (power.shape[0], 1, power.shape[1]) if power.ndim == 2 else power.shape
    return (slopes * _LN2 / full).sum_to_size(shape).reshape(power.shape).to(power.dtype)


def channel_maxima(k: Tensor, power: Tensor, padding: Tensor | None, scratch: Scratch) -> Tensor:
    """Return p log₂ max_j |k_j|, (B, H, 1, D), −∞ where all keys are 0 or padded."""
    largest = torch.zeros_like(power, memory_format=torch.contiguous_format)
    for tile in tiles(k, k.shape[3]):
        x = scratch.load("x", k[tile], _part(padding, tile))
        magnitude = torch.abs(x, out=scratch.take("magnitude", *x.shape))
        into = largest[tile[:2]]
        torch.maximum(into, magnitude.amax(dim=-2, keepdim=True), out=into)
    return largest.log2_().mul_(power)


def count_keys(k: Tensor, padding: Tensor | None, power: Tensor) -> Tensor:
    """Return the number of keys that are not padded, (B, 1, 1, 1)."""
    if padding is None:
        return power.new_full((k.shape[0], 1, 1, 1), k.shape[2])
    return (~padding).sum(dim=-2, keepdim=True).to(power.dtype)


def empty_sums(k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    """Return the sums over no key."""
    return power.new_zeros((*k.shape[:2], 2 * k.shape[3], v.shape[3] + 1))


def accumulate(
    sums: Tensor, maxima: Tensor, k: Tensor, v: Tensor, power: Tensor, padding: Tensor | None, scratch: Scratch
) -> None:
    """Add these keys to the sums, taken at `maxima`, (B, H, 1, D), which must be theirs or larger."""
    shift = -finite(maxima)
    for tile in tiles(k, max(k.shape[3], v.shape[3])):
        group, hidden = tile[:2], _part(padding, tile)
        features = _key_features(scratch.load("x", k[tile], hidden), power[group], shift[group], scratch).both
        values = scratch.load("values", v[tile], hidden).flatten(0, 1)
        into = sums[group].flatten(0, 1)
        into[..., :-1] += torch.bmm(features.mT, values, out=scratch.take("part", *into[..., :-1].shape))
        into[..., -1] += features.sum(dim=-2)


def attend(output: Tensor, q: Tensor, power: Tensor, state: State, eps: float, scratch: Scratch) -> None:
    """Write the attention of queries q, (B, H, N, D), into the output, (B, H, N, E)."""
    size = output.shape[3]
    cut = (size + 1) // 2
    mixed = _mix(state.sums)
    for tile in tiles(q, max(q.shape[3], size)):
        group = tile[:2]
        features, scale = _query_features(q[tile], power[group], state.maxima[group], scratch)
        product = _product(features.both, mixed[group], scratch).view(*scale.shape[:3], -1)
        weights = product[..., size:].add_(_scaled_eps(eps, state.count[group[:1]], scale))
        torch.div(product[..., :cut], weights[..., :1], out=output[tile][..., :cut])
        torch.div(product[..., cut:size], weights[..., 1:], out=output[tile][..., cut:])


def query_gradients(
    grad_q: Tensor, slopes: Tensor, grad: Tensor, q: Tensor, power: Tensor, state: State, eps: float, scratch: Scratch
) -> Tensor:
    """Write q's gradient, add the queries' part to the slopes, (B, H, 1, D), and return the gradient of the sums."""
    size = grad.shape[3]
    streams = slice(0, (size + 1) // 2), slice((size + 1) // 2, size)
    mixed = _mix(state.sums)
    steep = _times_power(mixed, power)
    grad_mixed = torch.zeros_like(mixed)
    for tile in tiles(q, max(q.shape[3], size)):
        group = tile[:2]
        features, scale = _query_features(q[tile], power[group], state.maxima[group], scratch)
        product = _product(features.both, mixed[group], scratch).view(*scale.shape[:3], -1)
        weights = product[..., size:]
        inverse = (weights + _scaled_eps(eps, state.count[group[:1]], scale)).reciprocal_()
        # A stream without any weight (one-signed q and k, no valid key) passes no gradient on, but ε alone in the
        # denominator can make grad / ε infinite there. Weights that ε only swamps still count.
        inverse.masked_fill_(weights == 0, 0)
        grad_product = scratch.take("grad_product", *product.shape)
        for i, stream in enumerate(streams):
            torch.mul(grad[tile][..., stream], inverse[..., i : i + 1], out=grad_product[..., stream])
            along = product[..., stream].mul_(grad_product[..., stream]).sum(dim=-1)
            torch.mul(along, inverse[..., i], out=grad_product[..., size + i]).neg_()

        grad_product = grad_product.flatten(0, 1)
        into = grad_mixed[group].flatten(0, 1)
        into += torch.bmm(features.both.mT, grad_product, out=scratch.take("part", *into.shape))
        steep_features = scratch.take("steep", *features.both.shape)
        torch.bmm(grad_product, steep[group].flatten(0, 1).mT, out=steep_features)
        _through_power(grad_q[tile], slopes[group], features, steep_features, scratch)
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
    steep = _times_power(grad_sums, power)
    for tile in tiles(k, max(k.shape[3], v.shape[3])):
        group, hidden = tile[:2], _part(padding, tile)
        features = _key_features(scratch.load("x", k[tile], hidden), power[group], shift[group], scratch)
        values = scratch.load("values", v[tile], hidden).flatten(0, 1)
        grad_values = scratch.take("grad_values", *values.shape)
        torch.bmm(features.both, grad_sums[group].flatten(0, 1)[..., :-1], out=grad_values)
        grad_v[tile].copy_(grad_values.view(grad_v[tile].shape))

        steep_values, steep_ones = steep[group].flatten(0, 1).mT.split([values.shape[-1], 1], dim=-2)
        steep_features = scratch.take("steep", *features.both.shape)
        torch.baddbmm(steep_ones, values, steep_values, out=steep_features)
        _through_power(grad_k[tile], slopes[group], features, steep_features, scratch)


def finite(maxima: Tensor) -> Tensor:
    """Replace −∞, the maximum over nothing but zeros, by the lowest number, which can be taken from −∞ in exponents."""
    return maxima.clamp(min=torch.finfo(maxima.dtype).min)


def _groups(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Group]:
    return head_groups(q.shape[0], q.shape[1], max(q.shape[2], k.shape[2]) * max(q.shape[3], v.shape[3]))


def _part(padding: Tensor | None, of: Group | Tile) -> Tensor | None:
    return None if padding is None else padding[of[0], :, of[2] if len(of) == 3 else slice(None)]


def _state(k: Tensor, v: Tensor, power: Tensor, padding: Tensor | None, scratch: Scratch) -> State:
    maxima = channel_maxima(k, power, padding, scratch)
    sums = empty_sums(k, v, power)
    accumulate(sums, maxima, k, v, power, padding, scratch)
    return State(maxima, sums, count_keys(k, padding, power))


def _key_features(k: Tensor, power: Tensor, shift: Tensor, scratch: Scratch) -> _Features:
    log, magnitude, exponents = _exponents(k, power, shift, scratch)
    return _Features(_split_by_sign(exponents, k, scratch), log, magnitude)


def _query_features(q: Tensor, power: Tensor, maxima: Tensor, scratch: Scratch) -> tuple[_Features, Tensor]:
    """Return the features, each query's largest 1, and log₂ of what they were divided by, (·, ·, T, 1)."""
    q = scratch.load("x", q, None)
    log, magnitude, exponents = _exponents(q, power, maxima, scratch)
    # A channel in which every key is zero (maximum −∞) says nothing and sets no query's scale either.
    scale = finite(exponents.amax(dim=-1, keepdim=True))
    return _Features(_split_by_sign(exponents.sub_(scale), q, scratch), log, magnitude), scale


def _exponents(x: Tensor, power: Tensor, shift: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor, Tensor]:
    magnitude = torch.abs(x, out=scratch.take("magnitude", *x.shape))
    log = torch.log2(magnitude, out=scratch.take("log", *x.shape))
    return log, magnitude, torch.mul(log, power, out=scratch.take("exponents", *x.shape)).add_(shift)


def _split_by_sign(exponents: Tensor, x: Tensor, scratch: Scratch) -> Tensor:
    scratch.exp2_("exponents", exponents.numel())
    signed = exponents.copysign_(x)
    both = scratch.take("both", *x.shape[:-1], 2 * x.shape[-1])
    positive, negative = both.chunk(2, dim=-1)
    torch.clamp(signed, min=0, out=positive)
    torch.sub(positive, signed, out=negative)
    return both.flatten(0, 1)


def _product(features: Tensor, mixed: Tensor, scratch: Scratch) -> Tensor:
    return torch.bmm(features, mixed.flatten(0, 1), out=scratch.take("product", *features.shape[:2], mixed.shape[-1]))


def _scaled_eps(eps: float, count: Tensor, scale: Tensor) -> Tensor:
    # Where q and k are one-signed the opposite stream is exactly 0: ε must stay above 0 there or it gives 0/0.
    bound = _EPS_EXPONENT_BOUND[scale.dtype]
    return count.clamp(min=1) * (math.log(eps) - scale * _LN2).clamp_(-bound, bound).exp_()


def _mix(sums: Tensor) -> Tensor:
    """Return [[A₁, B₂, A', B'], [B₁, A₂, B', A']]."""
    a, b = sums.chunk(2, dim=-2)
    cut = sums.shape[-1] // 2
    top = torch.cat([a[..., :cut], b[..., cut:-1], a[..., -1:], b[..., -1:]], dim=-1)
    bottom = torch.cat([b[..., :cut], a[..., cut:-1], b[..., -1:], a[..., -1:]], dim=-1)
    return torch.cat([top, bottom], dim=-2)


def _unmix(grad: Tensor) -> Tensor:
    """Return the gradient of the sums for that of the mixed sums."""
    top, bottom = grad.chunk(2, dim=-2)
    cut = (grad.shape[-1] - 1) // 2
    a = torch.cat([top[..., :cut], bottom[..., cut:-2], top[..., -2:-1] + bottom[..., -1:]], dim=-1)
    b = torch.cat([bottom[..., :cut], top[..., cut:-2], bottom[..., -2:-1] + top[..., -1:]], dim=-1)
    return torch.cat([a, b], dim=-2)


def _times_power(sums: Tensor, power: Tensor) -> Tensor:
    return sums * torch.cat([power, power], dim=-1).mT


def _through_power(grad: Tensor, slopes: Tensor, features: _Features, steep: Tensor, scratch: Scratch) -> None:
    """Write the gradient of x and add to the slopes p times that of p in powers of two, with `steep` p ∂/∂features."""
    positive, negative = steep.mul_(features.both).view(*features.log.shape[:3], -1).chunk(2, dim=-1)
    number = torch.finfo(steep.dtype)
    # What is multiplied is 0 where x is 0.
    log = features.log.clamp_(min=number.min)
    magnitude = features.magnitude.clamp_(min=number.tiny)
    weight = scratch.take("exponents", *log.shape)
    torch.div(torch.sub(positive, negative, out=weight), magnitude, out=grad)
    slopes += torch.add(positive, negative, out=weight).mul_(log).sum(dim=-2, keepdim=True)
