"""Polarity-aware linear attention, written to be read beside the paper, in float32 or float64 arithmetic.

Letters: B batch, H heads, N queries, M keys, D channels of q and k, E channels of v, E₁ = ⌈E/2⌉.

With a(x) = (x⁺)^p and b(x) = (x⁻)^p the two streams are
    y₁ = Σ_j s_ij v₁_j / (Σ_j s_ij + c ε),   s_ij = a(q_i)·a(k_j) + b(q_i)·b(k_j)
    y₂ = Σ_j o_ij v₂_j / (Σ_j o_ij + c ε),   o_ij = a(q_i)·b(k_j) + b(q_i)·a(k_j)
with c the number of keys. A column of ones beside v₁ and one beside v₂ make the denominators part of the same products:
    v' = [v₁, 1, v₂, 1],   [A; B] = [a(k), b(k)]ᵀ v',   [num₁, den₁, num₂, den₂] = [a(q), b(q)] [[A₁, B₂], [B₁, A₂]].

Nothing over- or underflows, at any input scale, because all powers are taken as exp(p log|x| − maximum): first the maximum
of each key channel over the keys moves from k to q, then the maximum of each query over its channels moves into ε.
The output does not depend on either maximum, so neither carries a gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# exp(±bound) stays a normal number of the dtype with room for a sum over keys.
_EPS_EXPONENT_BOUND = {torch.float32: 80.0, torch.float64: 600.0}


class _Terms(NamedTuple):
    """What forward and backward share, in the compute dtype."""

    features_q: Tensor  # (B, H, N, 2D): [a(q), b(q)], each query's largest 1
    features_k: Tensor  # (B, H, M, 2D): [a(k), b(k)], each channel's largest 1
    values: Tensor  # (B, H, M, E + 2): [v₁, 1, v₂, 1]
    state: Tensor  # (B, H, 2D, E + 2): [[A₁, B₂], [B₁, A₂]]
    eps: Tensor  # (B, H, N, 1): c ε in each query's scale
    log_q: Tensor  # (B, H, N, D): log|q|, −∞ where q is 0
    log_k: Tensor  # (B, H, M, D): log|k|, −∞ where k is 0 or masked


def forward(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> Tensor:
    """Return the attention output; arguments as in `polaformer.pola_attention`, already checked."""
    with _without_autocast(q):
        terms = _terms(*_compute_inputs(q, k, v, power), key_padding_mask, eps)
        return torch.cat(_streams(terms)[:2], dim=-1).to(v.dtype)


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and power for the output gradient `grad` (B, H, N, E)."""
    with _without_autocast(q):
        x_q, x_k, x_v, p = _compute_inputs(q, k, v, power)
        terms = _terms(x_q, x_k, x_v, p, key_padding_mask, eps)
        y1, y2, weights1, weights2 = _streams(terms)
        size1 = y1.shape[-1]
        grad_num1 = _quotient_gradient(grad[..., :size1], weights1, terms.eps)
        grad_num2 = _quotient_gradient(grad[..., size1:], weights2, terms.eps)
        grad_den1 = -(grad_num1 * y1).sum(-1, keepdim=True)
        grad_den2 = -(grad_num2 * y2).sum(-1, keepdim=True)
        grad_product = torch.cat([grad_num1, grad_den1, grad_num2, grad_den2], dim=-1)

        grad_features_q = grad_product @ terms.state.mT
        grad_state = _cross(terms.features_q.mT @ grad_product)
        grad_features_k = terms.values @ grad_state.mT
        grad_values = terms.features_k @ grad_state
        grad_v = torch.cat([grad_values[..., :size1], grad_values[..., size1 + 1 : -1]], dim=-1)

        grad_q, grad_power_q = _power_gradients(x_q, p, terms.log_q, terms.features_q, grad_features_q)
        grad_k, grad_power_k = _power_gradients(x_k, p, terms.log_k, terms.features_k, grad_features_k)
        grad_power = (grad_power_q.sum_to_size(p.shape) + grad_power_k.sum_to_size(p.shape)).reshape(power.shape)
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), grad_power.to(power.dtype)


def unusable_reason() -> None:
    """Return None: it works on every machine."""


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> None:
    """Return None: it takes all that the operator takes."""


def _without_autocast(x: Tensor) -> torch.autocast:
    # Under autocast the two products would run in half precision, where the sums over keys lose their small terms.
    return torch.autocast(x.device.type, enabled=False)


def _compute_inputs(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cast to the compute dtype: float64 if any input is float64, else float32; power to four dimensions."""
    dtype = torch.float64 if torch.float64 in (q.dtype, k.dtype, v.dtype, power.dtype) else torch.float32
    power = power.unsqueeze(-2) if power.ndim == 2 else power
    power = power.reshape((1,) * (4 - power.ndim) + tuple(power.shape))
    return q.to(dtype), k.to(dtype), v.to(dtype), power.to(dtype)


def _terms(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> _Terms:
    if key_padding_mask is None:
        count: Tensor | int = k.shape[-2]
    else:
        padding = key_padding_mask[:, None, :, None]
        k = k.masked_fill(padding, 0)
        v = v.masked_fill(padding, 0)  # a padded value may be NaN, and 0 · NaN is NaN
        count = (~padding).sum(dim=-2, keepdim=True).clamp(min=1)

    log_q, log_k = q.abs().log(), k.abs().log()
    exponent_k = power * log_k
    max_k = exponent_k.amax(dim=-2, keepdim=True)
    features_k = _split_by_sign((exponent_k - _finite(max_k)).exp(), k)

    # A channel in which every key is zero (maximum −∞) says nothing and sets no query's scale either.
    exponent_q = power * log_q + max_k
    max_q = _finite(exponent_q.amax(dim=-1, keepdim=True))
    features_q = _split_by_sign((exponent_q - max_q).exp(), q)

    # Where q and k are one-signed the opposite stream is exactly 0: ε must stay above 0 there or it gives 0/0.
    bound = _EPS_EXPONENT_BOUND[q.dtype]
    scaled_eps = count * (math.log(eps) - max_q).clamp(-bound, bound).exp()

    size1 = (v.shape[-1] + 1) // 2
    ones = torch.ones_like(v[..., :1])
    values = torch.cat([v[..., :size1], ones, v[..., size1:], ones], dim=-1)
    return _Terms(features_q, features_k, values, _cross(features_k.mT @ values), scaled_eps, log_q, log_k)


def _streams(terms: _Terms) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y₁ (B, H, N, E₁), y₂ (B, H, N, E − E₁) and their sums of weights, without ε, (B, H, N, 1)."""
    product = terms.features_q @ terms.state
    size = product.shape[-1]
    size1 = (size - 1) // 2
    num1, weights1, num2, weights2 = product.split([size1, 1, size - size1 - 2, 1], dim=-1)
    return num1 / (weights1 + terms.eps), num2 / (weights2 + terms.eps), weights1, weights2


def _quotient_gradient(grad: Tensor, weights: Tensor, eps: Tensor) -> Tensor:
    # A stream without any weight (one-signed q and k, no valid key) passes no gradient on, but ε alone in the denominator
    # can make grad / ε infinite there. Weights that ε only swamps still count.
    return (grad.to(weights.dtype) / (weights + eps)).masked_fill(weights == 0, 0)


def _cross(state: Tensor) -> Tensor:
    """Turn [A; B] into [[A₁, B₂], [B₁, A₂]], cut after the first ones column; its own inverse and transpose."""
    a, b = state.chunk(2, dim=-2)
    cut = (state.shape[-1] + 1) // 2
    top = torch.cat([a[..., :cut], b[..., cut:]], dim=-1)
    bottom = torch.cat([b[..., :cut], a[..., cut:]], dim=-1)
    return torch.cat([top, bottom], dim=-2)


def _split_by_sign(features: Tensor, x: Tensor) -> Tensor:
    signed = torch.copysign(features, x)
    return torch.cat([signed, -signed], dim=-1).clamp_(min=0)


def _finite(maximum: Tensor) -> Tensor:
    """Replace −∞, the maximum over nothing but zeros, by 0."""
    return maximum.masked_fill(maximum == -math.inf, 0)


def _power_gradients(
    x: Tensor, power: Tensor, log_x: Tensor, features: Tensor, grad_features: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and power, both with the shape of x, through f = |x|^p · constant; 0 where x is 0."""
    positive, negative = (features * grad_features).chunk(2, dim=-1)
    weight = positive + negative  # f · ∂/∂f; one of the two is 0
    zero = log_x == -math.inf  # also what a mask has set to 0
    return (weight * power / x).masked_fill_(zero, 0), (weight * log_x).masked_fill_(zero, 0)
