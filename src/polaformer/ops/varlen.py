"""Packed sequences of unequal lengths: each attends to its own keys only, with its own means."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .backends import check_backend, resolve_backend
from .registration import register_first_derivatives
from .validation import check_eps, check_power, check_storage, check_tensors

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor power, Tensor cu_seqlens_q, Tensor cu_seqlens_k"
_OPTIONS = 'int? max_seqlen_q=None, int? max_seqlen_k=None, float eps=1e-6, str backend="auto"'
FORWARD = "polaformer::pola_attention_varlen"
BACKWARD = "polaformer::pola_attention_varlen_backward"

torch.library.define(FORWARD, f"({_TENSORS}, {_OPTIONS}) -> Tensor")
torch.library.define(BACKWARD, f"(Tensor grad, {_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")


def pola_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    """Attend with polarity-aware linear attention in each of several sequences packed one after the other.

    Sequence i has the queries cu_seqlens_q[i] … cu_seqlens_q[i + 1] − 1 and likewise its keys; its result is what
    `polaformer.pola_attention` gives for it alone.

    Args:
        q: Queries of all sequences, (total queries, H, D), floating point.
        k: Keys, (total keys, H, D).
        v: Values, (total keys, H, E).
        power: Exponents p > 0, (H, D), or any shape that broadcasts to it.
        cu_seqlens_q: Where each sequence's queries begin, and the total at the end, (sequences + 1), int32 or int64. A
            sequence may be empty; queries without any key get output 0.
        cu_seqlens_k: The same of the keys.
        max_seqlen_q: Longest run of queries; without it another device than the CPU is waited for once, to find it.
        max_seqlen_k: Longest run of keys, likewise.
        eps: ε > 0 in the denominators, as in `pola_attention`.
        backend: As in `pola_attention`.

    Returns:
        (total queries, H, E), in v's dtype.

    Raises:
        RuntimeError: second derivatives are asked for.
        ValueError: an argument is no tensor, or has the wrong rank, shape, dtype or device; power is ≤ 0 or the lengths do
            not add up (both seen on the CPU only); the backend is unknown or cannot be used.

    Source: PolaFormer, ICLR 2025 (arXiv 2501.15061), section 4, sequence by sequence.
    """
    check_tensors(q=q, k=k, v=v, power=power)
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
    return torch.ops.polaformer.pola_attention_varlen(
        q, k, v, power, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, eps, backend
    )


@torch.library.impl(FORWARD, "default")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    check_backend(backend)
    _check(q, k, v, power, cu_seqlens_q, cu_seqlens_k, eps)
    implementation = resolve_backend(backend, q, k, v, power)
    if _runs_sequence_by_sequence(q):
        output = v.new_zeros((q.shape[0], *v.shape[1:]))
        for queries, keys in _sequences(cu_seqlens_q, cu_seqlens_k):
            one = _alone(q[queries]), _alone(k[keys]), _alone(v[keys])
            output[queries] = implementation.forward(*one, power, None, eps)[0].transpose(0, 1)
        return output
    packing = _Packing(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    padded = packing.pad_queries(q), packing.pad_keys(k), packing.pad_keys(v)
    return packing.pack_queries(implementation.forward(*padded, power, packing.mask, eps))


@torch.library.register_fake(FORWARD)
def _forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    return v.new_empty((q.shape[0], v.shape[1], v.shape[2]))


@torch.library.impl(BACKWARD, "default")
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    implementation = resolve_backend(backend, q, k, v, power)
    if _runs_sequence_by_sequence(q):
        grad_q, grad_k, grad_v, grad_power = (
            torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, power)
        )
        for queries, keys in _sequences(cu_seqlens_q, cu_seqlens_k):
            one = _alone(grad[queries]), _alone(q[queries]), _alone(k[keys]), _alone(v[keys])
            parts = implementation.backward(*one, power, None, eps)
            for whole, part, tokens in zip((grad_q, grad_k, grad_v), parts, (queries, keys, keys)):
                whole[tokens] = part[0].transpose(0, 1)
            grad_power += parts[3]
        return grad_q, grad_k, grad_v, grad_power
    packing = _Packing(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    padded = packing.pad_queries(grad), packing.pad_queries(q), packing.pad_keys(k), packing.pad_keys(v)
    grad_q, grad_k, grad_v, grad_power = implementation.backward(*padded, power, packing.mask, eps)
    return packing.pack_queries(grad_q), packing.pack_keys(grad_k), packing.pack_keys(grad_v), grad_power


@torch.library.register_fake(BACKWARD)
def _backward_fake(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), power.new_empty(power.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.polaformer.pola_attention_varlen_backward(grad, *ctx.saved_tensors, *ctx.options)
    return (*grads, *[None] * 6)


register_first_derivatives(FORWARD, BACKWARD, _gradients, _setup_context)


def _runs_sequence_by_sequence(q: Tensor) -> bool:
    # On the CPU a call costs microseconds, and padding would cost memory; elsewhere a loop would wait for every length.
    return q.device.type == "cpu"


def _sequences(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the queries and the keys of each sequence that has both."""
    at_q, at_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for queries, keys in zip(pairwise(at_q), pairwise(at_k)):
        if queries[0] < queries[1] and keys[0] < keys[1]:
            yield slice(*queries), slice(*keys)


def _alone(x: Tensor) -> Tensor:
    """View one sequence (N, H, C) as a batch of one, (1, H, N, C)."""
    return x.transpose(0, 1).unsqueeze(0)


class _Packing:
    """Moves tokens between the packed and the padded form without a loop over sequences."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int | None,
        max_seqlen_k: int | None,
    ) -> None:
        self.queries = _places(cu_seqlens_q, q.shape[0])
        self.keys = _places(cu_seqlens_k, k.shape[0])
        lengths_q, lengths_k = cu_seqlens_q.diff(), cu_seqlens_k.diff()
        sequences = lengths_q.shape[0]
        # A sequence without tokens still needs a place, and the operator at least one key.
        self.shape_q = (sequences, max(1, int(lengths_q.max()) if max_seqlen_q is None else max_seqlen_q))
        self.shape_k = (sequences, max(1, int(lengths_k.max()) if max_seqlen_k is None else max_seqlen_k))
        self.mask = torch.arange(self.shape_k[1], device=k.device) >= lengths_k[:, None]

    def pad_queries(self, x: Tensor) -> Tensor:
        return _pad(x, self.queries, self.shape_q)

    def pad_keys(self, x: Tensor) -> Tensor:
        return _pad(x, self.keys, self.shape_k)

    def pack_queries(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)[self.queries]

    def pack_keys(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)[self.keys]


def _places(cu_seqlens: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return each packed token's sequence and its place there."""
    token = torch.arange(total, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), token, right=True)
    return sequence, token - cu_seqlens[sequence]


def _pad(x: Tensor, places: tuple[Tensor, Tensor], shape: tuple[int, int]) -> Tensor:
    padded = x.new_zeros((*shape, *x.shape[1:]))
    padded[places] = x
    return padded.transpose(1, 2)


def _check(
    q: Tensor, k: Tensor, v: Tensor, power: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, eps: float
) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} must have 3 dimensions (tokens, heads, channels), got shape {tuple(x.shape)}")
    check_storage(q=q, k=k, v=v, power=power)
    _, heads, channels = q.shape
    if k.shape[1:] != q.shape[1:]:
        raise ValueError(f"k must have q's heads and channels, (M, {heads}, {channels}), got shape {tuple(k.shape)}")
    if v.shape[:2] != k.shape[:2]:
        raise ValueError(f"v must have k's tokens and heads, ({k.shape[0]}, {heads}, E), got shape {tuple(v.shape)}")
    check_power(power, 1, heads, channels)
    check_eps(eps)
    for name, lengths, x in (("cu_seqlens_q", cu_seqlens_q, q), ("cu_seqlens_k", cu_seqlens_k, k)):
        _check_lengths(name, lengths, x)
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(
            f"cu_seqlens_k must have as many entries as cu_seqlens_q, {cu_seqlens_q.shape[0]}, got {cu_seqlens_k.shape[0]}"
        )


def _check_lengths(name: str, lengths: Tensor, x: Tensor) -> None:
    if lengths.ndim != 1 or lengths.shape[0] < 2:
        raise ValueError(f"{name} must have shape (sequences + 1,) with a sequence or more, got {tuple(lengths.shape)}")
    if lengths.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} must have dtype torch.int32 or torch.int64, got {lengths.dtype}")
    if lengths.device != x.device:
        raise ValueError(f"{name} must be on the device of q, {x.device}, got {lengths.device}")
    # Looking at values on another device would wait for it.
    if lengths.device.type == "cpu":
        values = lengths.tolist()
        if values[0] != 0 or values[-1] != x.shape[0] or any(a > b for a, b in pairwise(values)):
            raise ValueError(f"{name} must rise from 0 to the number of tokens, {x.shape[0]}, got {values}")
