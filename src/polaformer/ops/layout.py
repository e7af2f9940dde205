"""How results lie in memory: token by token, so that joining the heads, (B, heads, N, h) to (B, N, heads · h), is a view."""

from __future__ import annotations

from torch import Tensor


def empty_token_major(x: Tensor, tokens: int) -> Tensor:
    """Return an empty (B, H, tokens, C) for x (B, H, ·, C), with the heads of a token side by side."""
    batch, heads, _, channels = x.shape
    return x.new_empty((batch, tokens, heads, channels)).transpose(1, 2)


def token_major(x: Tensor) -> Tensor:
    """Return x (B, H, N, C) with the heads of a token side by side; a copy only where it lies otherwise."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
