"""What the operator costs, as `torch.utils.flop_counter` counts it: by its shapes, whichever backend computes it.

Letters: B batch, H heads, N queries, M keys, D channels of q and k, E channels of v.

Counted are the multiply-adds of the matrix products, two operations each. Forward has two products, the sum over keys
[a(k), b(k)]ᵀ [v₁, 1, v₂, 1] and each query's product with it:

    forward = B · H · 2D · (E + 2) · (M + N) multiply-adds

Backward computes both again and needs two more for each, one for either factor's gradient: backward = 3 · forward.

Not counted, as nowhere in torch's counter: what is done element by element, here powers, maxima and quotients, (N + M) · D
and N · E of each. A backend that reaches the same numbers by other products counts the same: the operator does not cost
more work because it was done another way, and products inside a kernel are not counted a second time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import varlen
from .registration import BACKWARD, FORWARD

Shape = Sequence[int]


def attention_flops(q_shape: Shape, k_shape: Shape, v_shape: Shape, *_: Any, **__: Any) -> int:
    """Return the operations of `pola_attention`, two for each of the B · H · 2D · (E + 2) · (M + N) multiply-adds.

    Args:
        q_shape: (B, H, N, D).
        k_shape: (B, H, M, D).
        v_shape: (B, H, M, E).
    """
    batch, heads, queries, channels = q_shape
    return 2 * batch * heads * 2 * channels * (v_shape[3] + 2) * (k_shape[2] + queries)


def attention_backward_flops(
    grad_shape: Shape, q_shape: Shape, k_shape: Shape, v_shape: Shape, *_: Any, **__: Any
) -> int:
    """Return the operations of the gradients of all inputs, three times those of `pola_attention`; shapes as there."""
    return 3 * attention_flops(q_shape, k_shape, v_shape)


def packed_flops(q_shape: Shape, k_shape: Shape, v_shape: Shape, *_: Any, **__: Any) -> int:
    """Return the operations of `pola_attention_varlen`; shapes (tokens, H, channels), of all sequences together."""
    return attention_flops((1, q_shape[1], q_shape[0], q_shape[2]), (1, 1, k_shape[0], 1), (1, 1, 1, v_shape[2]))


def packed_backward_flops(grad_shape: Shape, q_shape: Shape, k_shape: Shape, v_shape: Shape, *_: Any, **__: Any) -> int:
    """Return the operations of the gradients of all inputs; shapes as there."""
    return 3 * packed_flops(q_shape, k_shape, v_shape)


def _register(formulas: dict[str, Callable[..., int]]) -> None:
    # Where there is no triton the counter's module says so in a warning when it is imported, to all who import this package.
    logger = logging.getLogger("torch.utils.flop_counter")
    silent, logger.disabled = logger.disabled, True
    try:
        from torch.utils.flop_counter import register_flop_formula
    finally:
        logger.disabled = silent
    for name, formula in formulas.items():
        namespace, _, operator = name.partition("::")
        register_flop_formula(getattr(getattr(torch.ops, namespace), operator))(formula)


_register(
    {
        FORWARD: attention_flops,
        BACKWARD: attention_backward_flops,
        varlen.FORWARD: packed_flops,
        varlen.BACKWARD: packed_backward_flops,
    }
)
