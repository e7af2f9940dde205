"""What computes attention from queries, keys, values and exponents: the operator, the published formula, softmax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polaformer.ops import pola_attention

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Contender:
    """One way to attend: q, k, v (B, H, N, D) and power (H, D) to (B, H, N, D)."""

    name: str
    attend: Attend
    exact: Attend
    """The same mathematics, right in float64."""
    slack: float
    """How many times the operator's own bounds its errors may reach."""


def operator(backend: str = "auto") -> Contender:
    """Return the operator of this package, by one of its backends."""
    name = "operator" if backend == "auto" else f"operator, {backend}"
    return Contender(name, functools.partial(pola_attention, backend=backend), _exact, 1.0)


def published_formula() -> Contender:
    """Return polarity-aware attention as published, in plain PyTorch operations and the dtype of its inputs."""
    return Contender("published formula", published_attention, _exact, 10.0)


def softmax() -> Contender:
    """Return PyTorch's own softmax attention."""
    return Contender("softmax", softmax_attention, softmax_attention, 10.0)


def published_attention(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    """Compute both streams one after the other, the same-signed and the opposite-signed.

    Each scales keys and values by n^-0.5 before the sum over n keys and divides by the mean similarity + 1e-6.

    Source: PolaFormer (arXiv 2501.15061), section 4.
    """
    exponents = power[:, None].to(q.dtype)
    positive_q, negative_q = F.relu(q) ** exponents, F.relu(-q) ** exponents
    keys = torch.cat([F.relu(k) ** exponents, F.relu(-k) ** exponents], dim=-1)
    scale = k.shape[-2] ** -0.5
    mean_key = keys.mean(dim=-2, keepdim=True)
    streams = []
    for signs, values in zip(((positive_q, negative_q), (negative_q, positive_q)), v.chunk(2, dim=-1)):
        queries = torch.cat(signs, dim=-1)
        normaliser = 1 / (queries @ mean_key.mT + 1e-6)
        streams.append(queries @ ((keys.mT * scale) @ (values * scale)) * normaliser)
    return torch.cat(streams, dim=-1)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    """Attend with softmax; the exponents take no part."""
    return F.scaled_dot_product_attention(q, k, v)


def _exact(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    return pola_attention(q, k, v, power, backend="reference")
