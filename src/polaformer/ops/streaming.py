"""The operator over keys and queries that come in chunks, for inference on inputs that do not fit in memory."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from .tiled import (
    State,
    accumulate,
    attend,
    channel_maxima,
    count_keys,
    empty_sums,
    full_power,
    groups,
    padding_of,
    rescale,
)
from .tiles import Scratch
from .validation import check_eps, check_keys, check_queries, check_tensors


class PolaAttentionStream:
    """Attend as `pola_attention` does, to keys that are added chunk by chunk.

    All that is kept of the keys are sums over them, taken in the scale of the largest key so far, m_d = max_j |k_jd|. A chunk
    with larger keys brings the sums to its scale, from m to m':

        S_d ← (m_d / m'_d)^p_d S_d + Σ_j (|k_jd| / m'_d)^p_d [v_j, 1],   one sum for each sign of k_jd

    Memory is that of a chunk and of 2 · D · (E + 1) numbers a head. Inference only: nothing is kept for a gradient.
    Arithmetic is that of `pola_attention`, on PyTorch calls on any device.

    Args:
        power: Exponents p > 0, (H, D), or any shape that broadcasts to (B, H, 1, D).
        eps: ε > 0 in the denominators.

    Raises:
        ValueError: an argument is no tensor, or power or eps is ≤ 0 (power's values are seen on the CPU only, when the first
            keys come).
    """

    def __init__(self, power: Tensor, *, eps: float = 1e-6) -> None:
        check_tensors(power=power)
        check_eps(eps)
        self._power = power
        self._eps = eps
        self._state: State | None = None
        self._full_power = power
        self._dtypes = (power.dtype, power.dtype)

    def add(self, k: Tensor, v: Tensor, key_padding_mask: Optional[Tensor] = None) -> None:
        """Add keys and their values.

        Args:
            k: Keys, (B, H, M, D); M ≥ 1 may differ from chunk to chunk, nothing else may.
            v: Values, (B, H, M, E).
            key_padding_mask: (B, M) bool, True = ignore this key.

        Raises:
            ValueError: an argument is no tensor, has the wrong rank, shape, dtype or device, or requires a gradient where
                gradients are recorded.
        """
        check_tensors(k=k, v=v, key_padding_mask=key_padding_mask)
        _check_no_gradient(k=k, v=v, power=self._power)
        check_keys(k, v, self._power, key_padding_mask)
        with torch.no_grad(), torch.autocast(k.device.type, enabled=False):
            state = self._state_for(k, v)
            scratch = Scratch(self._full_power)
            for group in groups(k, k, v):
                padding, power, maxima = (
                    padding_of(key_padding_mask, group),
                    self._full_power[group],
                    state.maxima[group],
                )
                larger = torch.maximum(maxima, channel_maxima(k[group], power, padding, scratch))
                rescale(state.sums[group], maxima, larger)
                accumulate(state.sums[group], larger, k[group], v[group], power, padding, scratch)
                maxima.copy_(larger)
            everything = slice(None), slice(None)
            state.count.add_(count_keys(k, padding_of(key_padding_mask, everything), self._full_power))

    def attend(self, q: Tensor) -> Tensor:
        """Return the attention of queries to all keys added so far.

        Args:
            q: Queries, (B, H, N, D); any N ≥ 1.

        Returns:
            [y₁, y₂] of shape (B, H, N, E), in v's dtype; 0 for a batch entry without any valid key.

        Raises:
            RuntimeError: no keys were added yet.
            ValueError: q is no tensor, has the wrong rank, shape, dtype or device, or requires a gradient where gradients are
                recorded.
        """
        check_tensors(q=q)
        _check_no_gradient(q=q, power=self._power)
        if self._state is None:
            raise RuntimeError("attend needs keys, got none yet: call add first")
        state, power = self._state, self._full_power
        check_queries(q, (power.shape[0], power.shape[1], power.shape[3]), power.device)
        if q.dtype == torch.float64 and power.dtype != torch.float64:
            raise ValueError("q must not be torch.float64 unless k, v or power is, got torch.float64")
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            output = q.new_empty((*q.shape[:3], state.sums.shape[-1] - 1), dtype=self._dtypes[1])
            scratch = Scratch(power)
            for group in groups(q, q, output):
                part = State(state.maxima[group], state.sums[group], state.count[group[:1]])
                attend(output[group], q[group], power[group], part, self._eps, scratch)
            return output

    def _state_for(self, k: Tensor, v: Tensor) -> State:
        if self._state is None:
            self._dtypes = k.dtype, v.dtype
            power = self._full_power = full_power(k, k, v, self._power)
            empty = torch.full_like(power, -torch.inf, memory_format=torch.contiguous_format)
            self._state = State(empty, empty_sums(k, v, power), power.new_zeros((k.shape[0], 1, 1, 1)))
            return self._state
        batch, heads, _, channels = self._full_power.shape
        size = self._state.sums.shape[-1] - 1
        if (*k.shape[:2], k.shape[3], v.shape[3]) != (batch, heads, channels, size):
            raise ValueError(
                f"k and v must have the first chunk's batch, heads and channels, ({batch}, {heads}, M, {channels}) and "
                f"({batch}, {heads}, M, {size}), got shapes {tuple(k.shape)} and {tuple(v.shape)}"
            )
        if (k.dtype, v.dtype) != self._dtypes:
            raise ValueError(
                f"k and v must have the first chunk's dtypes, {self._dtypes[0]} and {self._dtypes[1]}, got {k.dtype} "
                f"and {v.dtype}"
            )
        return self._state


def _check_no_gradient(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} must not require a gradient, which a stream does not give, got requires_grad=True: call under "
                "torch.no_grad()"
            )
