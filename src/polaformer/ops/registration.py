"""The operator as torch sees it: schema, kernels, shapes for tracing, gradient formula.

Checks run inside the kernels, not before the call: the call itself then has no control flow, and every tracer
(torch.compile, torch.export, FX, TorchScript) takes it as one node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .backends import resolve_backend
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
    implementation = resolve_backend(backend)
    check_inputs(q, k, v, power, key_padding_mask, eps)
    return implementation.forward(q, k, v, power, key_padding_mask, eps)


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
    resolve_backend(backend)
    check_inputs(q, k, v, power, key_padding_mask, eps)
    return v.new_empty((q.shape[0], q.shape[1], q.shape[2], v.shape[3]))


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
    return resolve_backend(backend).backward(grad, q, k, v, power, key_padding_mask, eps)


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
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), power.new_empty(power.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, power, key_padding_mask, ctx.eps, ctx.backend = inputs
    ctx.save_for_backward(q, k, v, power, key_padding_mask)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, power, key_padding_mask = ctx.saved_tensors
    grads = torch.ops.polaformer.pola_attention_backward(grad, q, k, v, power, key_padding_mask, ctx.eps, ctx.backend)
    return (*grads, None, None, None)


torch.library.register_autograd(FORWARD, _gradients, setup_context=_setup_context)


def _refuse_second_derivatives(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
    raise RuntimeError("pola_attention has first derivatives only, got a request for second ones (create_graph=True)")


torch.library.register_autograd(BACKWARD, _refuse_second_derivatives)
