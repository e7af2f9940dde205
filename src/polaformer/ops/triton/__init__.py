"""The operator on a GPU by fused Triton kernels: the binding of `forward_kernels` and `backward_kernels`.

No feature and no intermediate as large as q leaves the processors; the largest buffer is the state, 2D × E for each head and
chunk of tokens. Where no kernel runs, the operator is computed by `reference`, after one warning.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..layout import empty_token_major
from .configs import Config, NoConfigError, Problem, describe, launch, split

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_warned: set[str] = set()


@functools.cache
def unusable_reason() -> str | None:
    """Say why Triton cannot be used on this machine, or return None."""
    try:
        interpreted = _is_interpreted()
    except Exception as error:  # not installed, or a version that these kernels cannot be written in
        return f"Triton cannot be used: {type(error).__name__}: {error}"
    if not interpreted and not torch.cuda.is_available():
        return "it needs a GPU, and PyTorch sees none"
    return None


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> str | None:
    """Say why these tensors cannot be taken, or return None."""
    if q.device.type != "cuda" and not _is_interpreted():
        return f"it runs on a GPU, got tensors on {q.device}"
    if q.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(q.device) < (8, 0):
        return f"it needs compute capability 8.0 (Ampere) or higher, {torch.cuda.get_device_name(q.device)} has less"
    for name, x in (("q", q), ("k", k), ("v", v), ("power", power)):
        if x.dtype not in _DTYPES:
            return f"{name} must be float32, bfloat16 or float16, got {x.dtype}"
    return None


def forward(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> Tensor:
    """Return the attention output; arguments as in `polaformer.pola_attention`, already checked."""
    return _with_fallback(_forward, reference.forward, q, k, v, power, key_padding_mask, eps)


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and power for the output gradient `grad` (B, H, N, E)."""
    return _with_fallback(_backward, reference.backward, grad, q, k, v, power, key_padding_mask, eps)


def _with_fallback(fused: Callable[..., Any], plain: Callable[..., Any], *args: Any) -> Any:
    try:
        with _on_device(args[0].device):
            return fused(*args)
    except NoConfigError as error:
        if not _warned:
            _warned.add(str(error))
            warnings.warn(f"no Triton kernel runs for these tensors, PyTorch computes them: {error}", stacklevel=2)
        return plain(*args)


def _on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    # Triton launches on the current device, wherever the tensors are.
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _kernel(name: str) -> Any:
    from . import backward_kernels, forward_kernels  # here, since they import triton

    return getattr(backward_kernels if name.endswith("_gradient") else forward_kernels, name)


@functools.cache
def _is_interpreted() -> bool:
    import triton

    return not isinstance(_kernel("key_state"), triton.JITFunction)


class _Call:
    """What every launch for one call of the operator shares."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
    ) -> None:
        self.q, self.k, self.v = q, k, v
        self.batch, self.heads, self.queries, channels = q.shape
        self.keys, values = v.shape[2:]
        self.count = self.batch * self.heads
        power = power.unsqueeze(-2) if power.ndim == 2 else power
        self.power = power.float().expand(self.batch, self.heads, 1, channels)
        self.log2_eps = math.log2(eps)
        if key_padding_mask is None:
            self.mask, self.mask_strides, self.counts = self.power, (0, 0), self.power  # never looked at
        else:
            self.mask, self.mask_strides = key_padding_mask.view(torch.uint8), key_padding_mask.stride()
            self.counts = (~key_padding_mask).sum(dim=1).clamp(min=1).float()
        self.problem = Problem(describe(q.device), (q.dtype, k.dtype, v.dtype), channels, values)
        self.sizes = {"D": channels, "E": values}
        self.has_mask = key_padding_mask is not None
        # float16 and bfloat16 lose more to their own storage than to products of 10 bits with sums in float32, which tensor
        # cores compute in one step. An input of 24 bits takes three such products, of its high and its low bits.
        self.tf32 = torch.float32 not in (q.dtype, k.dtype, v.dtype)

    @property
    def power_strides(self) -> tuple[int, int, int]:
        stride = self.power.stride()
        return stride[0], stride[1], stride[3]

    def buffer(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.q.device)

    def blocks(self, config: Config) -> dict[str, int]:
        return {
            **self.sizes,
            "TF32": self.tf32,
            "ROWS": config.rows,
            "CHANNELS": config.channels,
            "VALUES": config.values,
            "num_warps": config.warps,
            "num_stages": config.stages,
        }

    def state_grid(self, config: Config, chunks: int) -> tuple[int, int, int]:
        channels, values = self.sizes["D"], self.sizes["E"]
        return self.count * chunks, math.ceil(channels / config.channels), math.ceil(values / config.values)

    def split(self, tokens: int) -> tuple[int, int]:
        programs = self.count * math.ceil(self.sizes["D"] / 64) * math.ceil(self.sizes["E"] / 64)
        return split(tokens, programs, self.problem.device)


class _State(NamedTuple):
    """[a(k), b(k)]ᵀ [v, 1] as `forward_kernels` describes it."""

    state: Tensor
    sums: Tensor
    peaks: Tensor


def _forward(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> Tensor:
    call = _Call(q, k, v, power, key_padding_mask, eps)
    state = _key_state(call)
    output = empty_token_major(v, call.queries)

    def run(config: Config) -> Tensor:
        blocks = math.ceil(call.queries / config.rows)
        _kernel("query_output")[call.count * blocks, math.ceil(v.shape[3] / config.values)](
            q, call.power, *state, call.counts, output, *q.stride(), *call.power_strides,
            call.heads, call.queries, blocks, call.keys, call.log2_eps, HAS_MASK=call.has_mask, **call.blocks(config),
        )  # fmt: skip
        return output

    return launch("query_output", call.problem, call.queries, run)


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = _Call(q, k, v, power, key_padding_mask, eps)
    state = _key_state(call)
    grad_q, grad_power_q, row_terms = _query_gradient(call, grad, state)
    grad_state, grad_sums = _state_gradient(call, grad, state, row_terms)
    grad_k, grad_v, grad_power_k = _key_gradient(call, state, grad_state, grad_sums)
    grad_power = grad_power_q.sum(dim=1) + grad_power_k.sum(dim=1)
    shape = (power.shape[0], 1, power.shape[1]) if power.ndim == 2 else power.shape
    grad_power = grad_power.view(call.power.shape).sum_to_size(shape).reshape(power.shape)
    return grad_q, grad_k, grad_v, grad_power.to(power.dtype)


def _key_state(call: _Call) -> _State:
    channels, values = call.sizes.values()
    chunks, chunk = call.split(call.keys)

    def buffers(parts: int) -> _State:
        return _State(
            call.buffer(parts, call.count, 2, channels, values),
            call.buffer(parts, call.count, 2, channels),
            call.buffer(parts, call.count, channels),
        )

    parts = buffers(chunks)

    def run(config: Config) -> _State:
        _kernel("key_state")[call.state_grid(config, chunks)](
            call.k, call.v, call.mask, call.power, *parts,
            *call.k.stride(), *call.v.stride(), *call.mask_strides, *call.power_strides,
            call.heads, call.keys, chunk, chunks, HAS_MASK=call.has_mask, **call.blocks(config),
        )  # fmt: skip
        return parts

    launch("key_state", call.problem, call.keys, run)
    if chunks == 1:
        return parts
    merged = buffers(1)

    def run_merge(config: Config) -> _State:
        _kernel("merge_state")[call.count, channels, math.ceil(values / config.values)](
            call.power, *parts, *merged, *call.power_strides, call.heads, chunks,
            **call.sizes, PARTS=config.rows, VALUES=config.values, num_warps=config.warps,
        )  # fmt: skip
        return merged

    return launch("merge_state", call.problem, chunks, run_merge)


def _query_gradient(call: _Call, grad: Tensor, state: _State) -> tuple[Tensor, Tensor, Tensor]:
    """Return q's gradient, power's by blocks of queries, and the row terms of `backward_kernels`."""
    q = call.q
    grad_q = empty_token_major(q, call.queries)
    row_terms = call.buffer(call.count, 5, call.queries)

    def run(config: Config) -> Tensor:
        blocks = math.ceil(call.queries / config.rows)
        grad_power = call.buffer(call.count, blocks, call.sizes["D"])
        _kernel("query_gradient")[(call.count * blocks,)](
            grad, q, call.power, *state, call.counts, grad_q, grad_power, row_terms,
            *grad.stride(), *q.stride(), *call.power_strides,
            call.heads, call.queries, blocks, call.keys, call.log2_eps, HAS_MASK=call.has_mask, **call.blocks(config),
        )  # fmt: skip
        return grad_power

    return grad_q, launch("query_gradient", call.problem, call.queries, run), row_terms


def _state_gradient(call: _Call, grad: Tensor, state: _State, row_terms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the state, not crossed, and of its sums."""
    channels, values = call.sizes.values()
    chunks, chunk = call.split(call.queries)
    grad_state = call.buffer(chunks, call.count, 2, channels, values)
    grad_sums = call.buffer(chunks, call.count, 2, channels)

    def run(config: Config) -> Tensor:
        _kernel("state_gradient")[call.state_grid(config, chunks)](
            grad, call.q, call.power, state.peaks, row_terms, grad_state, grad_sums,
            *grad.stride(), *call.q.stride(), *call.power_strides,
            call.heads, call.queries, chunk, chunks, **call.blocks(config),
        )  # fmt: skip
        return grad_state

    launch("state_gradient", call.problem, call.queries, run)
    return (grad_state, grad_sums) if chunks == 1 else (grad_state.sum(dim=0), grad_sums.sum(dim=0))


def _key_gradient(call: _Call, state: _State, grad_state: Tensor, grad_sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return k's and v's gradients, and power's by blocks of keys."""
    k, v = call.k, call.v
    grad_k, grad_v = (empty_token_major(x, call.keys) for x in (k, v))

    def run(config: Config) -> Tensor:
        blocks = math.ceil(call.keys / config.rows)
        grad_power = call.buffer(call.count, blocks, call.sizes["D"])
        _kernel("key_gradient")[(call.count * blocks,)](
            k, v, call.mask, call.power, state.peaks, grad_state, grad_sums, grad_k, grad_v, grad_power,
            *k.stride(), *v.stride(), *call.mask_strides, *call.power_strides,
            call.heads, call.keys, blocks, HAS_MASK=call.has_mask, **call.blocks(config),
        )  # fmt: skip
        return grad_power

    return grad_k, grad_v, launch("key_gradient", call.problem, call.keys, run)
