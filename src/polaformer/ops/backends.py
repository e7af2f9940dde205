"""The ways to compute the operator, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from . import reference


class Backend(NamedTuple):
    """One implementation: forward(q, k, v, power, mask, eps) and backward(grad, q, k, v, power, mask, eps)."""

    forward: Callable[..., Tensor]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


BACKENDS: dict[str, Backend] = {"reference": Backend(reference.forward, reference.backward)}


def resolve_backend(name: str) -> Backend:
    """Return the named backend; 'auto' is 'reference' on every device.

    Raises:
        ValueError: the name is not known.
    """
    if name == "auto":
        name = "reference"
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(['auto', *BACKENDS])}, got {name!r}")
    return BACKENDS[name]
