"""The ways to compute the operator: which there are, which work here, and which one 'auto' takes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor


class Backend(Protocol):
    """What a backend's module offers."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
    ) -> Tensor:
        """Return the output."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of q, k, v and power for the output's."""
        ...

    unusable_reason: Callable[[], str | None]
    """Says why the backend cannot run on this machine, or returns None."""

    unsupported_reason: Callable[[Tensor, Tensor, Tensor, Tensor], str | None]
    """Says why the backend cannot take these q, k, v and power, or returns None."""


class BackendStatus(NamedTuple):
    """A backend's name, whether it can be used on this machine, and why not (empty if it can)."""

    name: str
    usable: bool
    reason: str


# In the order in which 'auto' tries them.
BACKENDS = ("native", "triton", "tiled", "reference")
_AUTOMATIC = {"cpu": ("native", "tiled"), "cuda": ("triton",)}


def list_backends() -> list[BackendStatus]:
    """List the operator's backends in the order in which `backend="auto"` tries them, and say which work on this machine.

    Returns:
        One (name, usable, reason) for each backend; reason says why it is not usable.
    """
    reasons = {name: _load(name).unusable_reason() for name in BACKENDS}
    return [BackendStatus(name, reason is None, reason or "") for name, reason in reasons.items()]


def resolve_backend(name: str, q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> Backend:
    """Return the named backend, or for 'auto' the first that works here and takes these tensors.

    Raises:
        ValueError: the name is not known, or the named backend does not work here or does not take these tensors.
    """
    if name == "auto":
        for candidate in _AUTOMATIC.get(q.device.type, ()):
            backend = _load(candidate)
            if backend.unusable_reason() is None and backend.unsupported_reason(q, k, v, power) is None:
                return backend
        return _load("reference")
    check_backend(name)
    backend = _load(name)
    reason = backend.unusable_reason() or backend.unsupported_reason(q, k, v, power)
    if reason:
        raise ValueError(f"backend {name!r} cannot be used: {reason}")
    return backend


def check_backend(name: str) -> None:
    """Raise ValueError unless the name is that of a backend or 'auto'."""
    if name not in ("auto", *BACKENDS):
        raise ValueError(f"backend must be one of {', '.join(['auto', *BACKENDS])}, got {name!r}")


@functools.cache
def _load(name: str) -> Backend:
    return importlib.import_module(f".{name}", __package__)  # pyright: ignore[reportReturnType]
