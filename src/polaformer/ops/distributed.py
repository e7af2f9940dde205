"""The operator over tokens that are spread over the ranks of a process group.

Queries meet keys in sums over keys only, so that ranks exchange three tensors forward (the channel maxima of the keys, their
sums and their number) and one backward (the gradient of the sums), all of a size that does not depend on the tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .tiled import (
    State,
    accumulate,
    attend,
    channel_maxima,
    count_keys,
    empty_sums,
    full_power,
    groups,
    key_gradients,
    padding_of,
    power_gradient,
    query_gradients,
)
from .tiles import Scratch
from .validation import check_inputs


def sharded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    key_padding_mask: Tensor | None,
    eps: float,
    backend: str,
    group: dist.ProcessGroup,
) -> Tensor:
    """Return the attention of this rank's queries to the keys of all ranks; arguments as in `polaformer.pola_attention`."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(f"group must be None while torch.distributed is not initialised, got {type(group).__name__}")
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(
            "group must be a torch.distributed.ProcessGroup that this rank belongs to, or None, got "
            f"{type(group).__name__}"
        )
    if backend not in ("auto", "tiled"):
        raise ValueError(f"backend must be 'auto' or 'tiled' with a group, got {backend!r}")
    check_inputs(q, k, v, power, key_padding_mask, eps)
    return _ShardedAttention.apply(q, k, v, power, key_padding_mask, eps, group)  # pyright: ignore[reportReturnType]


class _ShardedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        q, k, v, power, key_padding_mask, ctx.eps, ctx.group = inputs
        with torch.autocast(q.device.type, enabled=False):
            full = full_power(q, k, v, power)
            state = _common_state(q, k, v, full, key_padding_mask, ctx.group)
            output = v.new_empty((*q.shape[:3], v.shape[3]))
            scratch = Scratch(full)
            for part in groups(q, k, v):
                attend(output[part], q[part], full[part], _part_of(state, part), ctx.eps, scratch)
        ctx.save_for_backward(q, k, v, power, key_padding_mask, *state)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, power, key_padding_mask, *state = ctx.saved_tensors
        state = State(*state)
        with torch.autocast(q.device.type, enabled=False):
            full = full_power(q, k, v, power)
            scratch = Scratch(full)
            grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
            slopes = torch.zeros_like(full, memory_format=torch.contiguous_format)
            grad_sums = torch.empty_like(state.sums)
            for part in groups(q, k, v):
                queries = grad_q[part], slopes[part], grad[part], q[part], full[part]
                grad_sums[part] = query_gradients(*queries, _part_of(state, part), ctx.eps, scratch)
            dist.all_reduce(grad_sums, group=ctx.group)
            for part in groups(q, k, v):
                written = grad_k[part], grad_v[part], slopes[part]
                keys = k[part], v[part], full[part], padding_of(key_padding_mask, part)
                key_gradients(*written, grad_sums[part], state.maxima[part], *keys, scratch)
            return grad_q, grad_k, grad_v, power_gradient(slopes, full, power), None, None, None


def _common_state(
    q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, group: dist.ProcessGroup
) -> State:
    """Return the state of the keys of all ranks."""
    scratch = Scratch(power)
    maxima = torch.empty_like(power, memory_format=torch.contiguous_format)
    for part in groups(q, k, v):
        maxima[part] = channel_maxima(k[part], power[part], padding_of(key_padding_mask, part), scratch)
    dist.all_reduce(maxima, dist.ReduceOp.MAX, group)

    sums = empty_sums(k, v, power)
    for part in groups(q, k, v):
        keys = k[part], v[part], power[part], padding_of(key_padding_mask, part)
        accumulate(sums[part], maxima[part], *keys, scratch)
    dist.all_reduce(sums, group=group)
    count = count_keys(k, padding_of(key_padding_mask, (slice(None), slice(None))), power)
    dist.all_reduce(count, group=group)
    return State(maxima, sums, count)


def _part_of(state: State, part: tuple[slice, slice]) -> State:
    return State(state.maxima[part], state.sums[part], state.count[part[:1]])
