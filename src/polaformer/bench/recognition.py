"""What PyTorch's operators are, by name and shapes: attention, of matmul kind, counted or not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

LINEAR, SOFTMAX = "polarity-aware linear", "softmax"

_MATMUL_WORDS = re.compile(
    r"[a-z]*mm|[a-z]*mv|v?dot|vecdot|matmul|conv(\dd)?|convolution|attention|linear|lstm|gru|rnn|einsum|cdist|(bi|tri)linear"
)


class Attention(NamedTuple):
    """One call of attention, as its shapes show it."""

    kind: str
    """LINEAR or SOFTMAX."""
    tokens: int
    """Queries an image, those of padding included."""
    keys: int
    """Keys that each query attends to."""


def is_of_matmul_kind(name: str) -> bool:
    """Whether an operator, named as 'aten.mm', multiplies matrices as far as anyone knows.

    True for PyTorch's own operators whose names say so, and for every operator that is not PyTorch's own.
    """
    namespace, _, operator = name.partition(".")
    if namespace not in ("aten", "prim", "prims"):
        return True
    return any(_MATMUL_WORDS.fullmatch(word) for word in operator.split("_"))


def attention_of(name: str, batch: int, args: tuple[Any, ...]) -> Attention | None:
    """Return which attention an operator computes for `batch` images, None if none.

    Fused softmax attention is known by its name, that written out by its softmax over the last of three or more dimensions,
    taken for (…, heads, queries, keys).
    """
    linear = name == "polaformer.pola_attention"
    if linear or (name.startswith("aten._scaled_dot_product") and not name.endswith("_backward")):
        q, k = args[:2]
        groups = math.prod(q.shape[:-3])  # images, or windows of them
        return Attention(LINEAR if linear else SOFTMAX, groups * q.shape[-2] // batch, k.shape[-2])
    if name in ("aten._softmax", "aten._safe_softmax"):
        scores, dim = args[:2]
        if scores.ndim >= 3 and dim % scores.ndim == scores.ndim - 1:
            groups = math.prod(scores.shape[:-3]) if scores.ndim > 3 else batch
            return Attention(SOFTMAX, groups * scores.shape[-2] // batch, scores.shape[-1])
    return None


def more_formulas() -> dict[Any, Callable[..., int]]:
    """Formulas for operators that PyTorch's counter does not know: fused attention on the CPU, deformable convolution."""
    formulas: dict[Any, Callable[..., int]] = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flops
    }
    if hasattr(torch.ops.torchvision, "deform_conv2d"):
        formulas[torch.ops.torchvision.deform_conv2d] = _deformable_convolution_flops
    return formulas


def _fused_attention_flops(q_shape: Any, k_shape: Any, v_shape: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(q_shape[:-1]) * k_shape[-2] * (q_shape[-1] + v_shape[-1])


def _deformable_convolution_flops(x_shape: Any, weight_shape: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    return 2 * math.prod(out_shape) * math.prod(weight_shape[1:])
