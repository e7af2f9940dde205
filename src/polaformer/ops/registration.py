"""The operator as torch sees it: schema, kernels, shapes for tracing, gradient formula.

Checks of shapes and values run inside the kernels, not before the call: the call itself then has no control flow that
depends on them, and every tracer (torch.compile, torch.export, FX, TorchScript) takes it as one node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .backends import check_backend, resolve_backend
from .layout import empty_token_major, token_major
from .validation import check_inputs

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor power"
_OPTIONS = 'Tensor? key_padding_mask=None, float eps=1e-6, str backend="auto"'
FORWARD = "polaformer::pola_attention"
BACKWARD = "polaformer::pola_attention_backward"

# The dispatcher leaves out arguments that equal their default, so every kernel below repeats the defaults.
torch.library.define(FORWARD, f"({_TENSORS}, {_OPTIONS}) -> Tensor")
torch.library.define(BACKWARD, f"(Tensor grad, {_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")


@torch.library.impl(FORWARD, "default")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    key_padding_mask: Tensor | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    check_backend(backend)
    check_inputs(q, k, v, power, key_padding_mask, eps)
    return token_major(resolve_backend(backend, q, k, v, power).forward(q, k, v, power, key_padding_mask, eps))


@torch.library.register_fake(FORWARD)
def _forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    key_padding_mask: Tensor | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    check_backend(backend)
    check_inputs(q, k, v, power, key_padding_mask, eps)
    return empty_token_major(v, q.shape[2])


@torch.library.impl(BACKWARD, "default")
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    key_padding_mask: Tensor | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    implementation = resolve_backend(backend, q, k, v, power)
    grad_q, grad_k, grad_v, grad_power = implementation.backward(grad, q, k, v, power, key_padding_mask, eps)
    return token_major(grad_q), token_major(grad_k), token_major(grad_v), grad_power


@torch.library.register_fake(BACKWARD)
def _backward_fake(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    key_padding_mask: Tensor | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v = (empty_token_major(x, x.shape[2]) for x in (q, k, v))
    return grad_q, grad_k, grad_v, power.new_empty(power.shape)


class _BackwardOnly(torch.library.Library):
    """Registers kernels that refuse tangents, which torch's own autograd kernels drop without a word."""

    def impl(self, op_name: str, fn: Callable[..., Any], dispatch_key: str = "", **options: Any) -> None:
        def checked(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            # Looked for here, above the kernels: below, functorch has already taken the tangents off.
            if any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in args):
                raise RuntimeError(
                    f"{op_name} has derivatives by backward only, got a request for forward-mode ones (jvp)"
                )
            return fn(keyset, *args, **kwargs)

        super().impl(op_name, checked, dispatch_key, **options)


_library = _BackwardOnly("polaformer", "FRAGMENT")


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, power, key_padding_mask, ctx.eps, ctx.backend = inputs
    ctx.save_for_backward(q, k, v, power, key_padding_mask)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, power, key_padding_mask = ctx.saved_tensors
    grads = torch.ops.polaformer.pola_attention_backward(grad, q, k, v, power, key_padding_mask, ctx.eps, ctx.backend)
    return (*grads, None, None, None)


def _refuse_second_derivatives(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
    raise RuntimeError("pola_attention has first derivatives only, got a request for second ones (create_graph=True)")


def register_first_derivatives(
    forward: str, backward: str, gradients: Callable[..., Any], setup_context: Callable[..., Any]
) -> None:
    """Give an operator its gradient formula, and refuse forward-mode and second derivatives."""
    torch.library.register_autograd(forward, gradients, setup_context=setup_context, lib=_library)
    torch.library.register_autograd(backward, _refuse_second_derivatives, lib=_library)


register_first_derivatives(FORWARD, BACKWARD, _gradients, _setup_context)
