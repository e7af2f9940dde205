"""Checks of the operator's arguments: shapes and dtypes, and power's values where looking costs no device sync."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import is_tensor_like


def check_tensors(q: Any, k: Any, v: Any, power: Any, key_padding_mask: Any) -> None:
    """Raise ValueError naming the argument that is no tensor; what stands for one while a function is traced passes."""
    for name, x in (("q", q), ("k", k), ("v", v), ("power", power)):
        if not is_tensor_like(x):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
    if key_padding_mask is not None and not is_tensor_like(key_padding_mask):
        raise ValueError(f"key_padding_mask must be a tensor or None, got {type(key_padding_mask).__name__}")


def check_inputs(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> None:
    """Raise ValueError naming the argument, what it must be and what it was, unless the operator can take them."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions (batch, heads, tokens, channels), got shape {_shape(x)}")
    check_storage(q, k, v, power)
    batch, heads, _, channels = q.shape
    if k.shape[0] != batch or k.shape[1] != heads or k.shape[3] != channels:
        raise ValueError(
            f"k must have q's batch, heads and channels, ({batch}, {heads}, M, {channels}), got shape {_shape(k)}"
        )
    if v.shape[0] != batch or v.shape[1] != heads or v.shape[2] != k.shape[2]:
        raise ValueError(
            f"v must have k's batch, heads and tokens, ({batch}, {heads}, {k.shape[2]}, E), got shape {_shape(v)}"
        )
    check_power(power, batch, heads, channels)
    if key_padding_mask is not None:
        _check_mask(key_padding_mask, k)
    check_eps(eps)


def check_storage(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> None:
    """Raise ValueError unless all are floating-point, on one device and not empty."""
    for name, x in (("q", q), ("k", k), ("v", v), ("power", power)):
        if not x.is_floating_point():
            raise ValueError(f"{name} must have a floating-point dtype, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
        if 0 in x.shape:
            raise ValueError(f"{name} must have at least one element in every dimension, got shape {_shape(x)}")


def check_eps(eps: float) -> None:
    """Raise ValueError unless ε is positive."""
    if not eps > 0:
        raise ValueError(f"eps must be > 0, got {eps}")


def check_power(power: Tensor, batch: int, heads: int, channels: int) -> None:
    """Raise ValueError unless the exponents fit these sizes and, where looking costs no device sync, are positive."""
    full = (batch, heads, 1, channels)
    shape = tuple(power.shape)
    aligned = (*shape[:1], 1, *shape[1:]) if power.ndim == 2 else shape
    if power.ndim > 4 or any(size not in (1, target) for size, target in zip(reversed(aligned), reversed(full))):
        raise ValueError(
            f"power must have shape (heads, channels) = ({heads}, {channels}) or broadcast to {full}, got {_shape(power)}"
        )
    # Looking at values on another device would wait for it; fake tensors have none.
    if power.device.type == "cpu" and type(power).__name__ != "FakeTensor" and not bool((power > 0).all()):
        raise ValueError(f"power must be > 0 everywhere, got a minimum of {power.min().item():g}")


def _check_mask(mask: Tensor, k: Tensor) -> None:
    expected = (k.shape[0], k.shape[2])
    if mask.ndim != 2 or mask.shape[0] != expected[0] or mask.shape[1] != expected[1]:
        raise ValueError(
            f"key_padding_mask must have shape (batch, keys) = {expected}, got {_shape(mask)}; a mask over query-key pairs "
            "does not exist in linear attention, instead mask padded keys or call the operator window by window"
        )
    if str(mask.dtype) != "torch.bool":
        raise ValueError(f"key_padding_mask must have dtype torch.bool (True = ignore this key), got {mask.dtype}")
    if mask.device != k.device:
        raise ValueError(f"key_padding_mask must be on the device of q, {k.device}, got {mask.device}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
