"""Checks of the operator's arguments: shapes and dtypes, and power's values where looking costs no device sync."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like


def check_tensors(key_padding_mask: Any = None, **tensors: Any) -> None:
    """Raise ValueError naming the argument that is no tensor; what stands for one while a function is traced passes."""
    for name, x in tensors.items():
        if not is_tensor_like(x):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
    if key_padding_mask is not None and not is_tensor_like(key_padding_mask):
        raise ValueError(f"key_padding_mask must be a tensor or None, got {type(key_padding_mask).__name__}")


def check_inputs(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> None:
    """Raise ValueError naming the argument, what it must be and what it was, unless the operator can take them."""
    _check_each(q=q, k=k, v=v, power=power)
    batch, heads, _, channels = q.shape
    if k.shape[0] != batch or k.shape[1] != heads or k.shape[3] != channels:
        raise ValueError(
            f"k must have q's batch, heads and channels, ({batch}, {heads}, M, {channels}), got shape {_shape(k)}"
        )
    _check_values(k, v, power, key_padding_mask)
    check_eps(eps)


def check_keys(k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None) -> None:
    """Raise ValueError as `check_inputs` does, for the keys alone."""
    _check_each(k=k, v=v, power=power)
    _check_values(k, v, power, key_padding_mask)


def check_queries(q: Tensor, shape: tuple[int, int, int], device: torch.device) -> None:
    """Raise ValueError unless q can meet keys with this (batch, heads, channels) on this device."""
    _check_each(q=q)
    if (*q.shape[:2], q.shape[3]) != shape:
        batch, heads, channels = shape
        raise ValueError(
            f"q must have the keys' batch, heads and channels, ({batch}, {heads}, N, {channels}), got shape {_shape(q)}"
        )
    if q.device != device:
        raise ValueError(f"q must be on the device of the keys, {device}, got {q.device}")


def check_eps(eps: float) -> None:
    """Raise ValueError unless ε > 0."""
    if not eps > 0:
        raise ValueError(f"eps must be > 0, got {eps}")


def check_storage(**tensors: Tensor) -> None:
    """Raise ValueError unless all, by their names, are floating-point, on one device and not empty."""
    first = next(iter(tensors))
    for name, x in tensors.items():
        if x.layout != torch.strided:
            raise ValueError(f"{name} must be a dense tensor (layout torch.strided), got {x.layout}")
        if not x.is_floating_point():
            raise ValueError(f"{name} must have a floating-point dtype, got {x.dtype}")
        if x.device != tensors[first].device:
            raise ValueError(f"{name} must be on the device of {first}, {tensors[first].device}, got {x.device}")
        if 0 in x.shape:
            raise ValueError(f"{name} must have at least one element in every dimension, got shape {_shape(x)}")


def _check_each(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if name != "power" and x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions (batch, heads, tokens, channels), got shape {_shape(x)}")
    check_storage(**tensors)


def _check_values(k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None) -> None:
    batch, heads, keys, channels = k.shape
    if v.shape[0] != batch or v.shape[1] != heads or v.shape[2] != keys:
        raise ValueError(
            f"v must have k's batch, heads and tokens, ({batch}, {heads}, {keys}, E), got shape {_shape(v)}"
        )
    check_power(power, batch, heads, channels)
    if key_padding_mask is not None:
        _check_mask(key_padding_mask, k)


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
        raise ValueError(f"key_padding_mask must be on the device of k, {k.device}, got {mask.device}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)
