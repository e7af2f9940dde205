"""The public operator."""

from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor

from . import registration
from .distributed import sharded_attention
from .validation import check_tensors

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def pola_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    *,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    backend: str = "auto",
    group: Optional["ProcessGroup"] = None,
) -> Tensor:
    """Attend with polarity-aware linear attention, at a cost of O((N + M) · D · E).

    With a(x) = max(x, 0)^p and b(x) = max(−x, 0)^p elementwise, query i weighs key j by its same-signed and by its
    opposite-signed similarity, one for each half of the value channels (v₁: the first ⌈E/2⌉, v₂: the rest):

        s_ij = a(q_i)·a(k_j) + b(q_i)·b(k_j)        y₁_i = mean_j(s_ij v₁_j) / (mean_j s_ij + ε)
        o_ij = a(q_i)·b(k_j) + b(q_i)·a(k_j)        y₂_i = mean_j(o_ij v₂_j) / (mean_j o_ij + ε)

    Arithmetic is float32 (float64 if an input is float64) whatever the inputs are stored in and with or without autocast,
    and no intermediate over- or underflows at any scale of q and k; what is below 1e-38 of the largest weight, after the power,
    counts as 0. First derivatives only.

    Args:
        q: Queries, (B, H, N, D), floating point; any N, D ≥ 1.
        k: Keys, (B, H, M, D); any M ≥ 1.
        v: Values, (B, H, M, E); any E ≥ 1.
        power: Exponents p > 0, (H, D), or any shape that broadcasts to (B, H, 1, D).
        key_padding_mask: (B, M) bool, True = ignore this key, as in `torch.nn.MultiheadAttention`. Ignored keys count
            neither in the sums nor in the means; a batch entry without any valid key gets output 0.
        eps: ε > 0 in the denominators.
        backend: Implementation, one that `list_backends` names, or 'auto', the first of them that works for these tensors:
            'native', then 'tiled', on the CPU, 'triton' on CUDA, else 'reference'. With a group it is 'tiled'.
        group: Ranks that the tokens are spread over, in parts of any sizes ≥ 1; every rank calls with its own tokens of q, k,
            v and the mask, with equal B, H, D, E, dtypes, power and eps, and gets the output of its own queries. Every rank
            must also run backward. The gradient of power is then a rank's own share of it: the shares' sum is the whole.

    Returns:
        [y₁, y₂] of shape (B, H, N, E), in v's dtype.

    Raises:
        RuntimeError: a derivative is asked for that is not by backward (`torch.func.jvp`), or is a second one.
        ValueError: an argument is no tensor, or has the wrong rank, shape, dtype or device; power is ≤ 0 (seen on the CPU
            only, where looking does not wait for a device); the backend is unknown or cannot be used; group is no process
            group that this rank belongs to.

    Source: PolaFormer, ICLR 2025 (arXiv 2501.15061), section 4.
    """
    check_tensors(q=q, k=k, v=v, power=power, key_padding_mask=key_padding_mask)
    if group is not None:
        return sharded_attention(q, k, v, power, key_padding_mask, eps, backend, group)
    return torch.ops.polaformer.pola_attention(q, k, v, power, key_padding_mask, eps, backend)


# TorchScript does not compile functions with keyword-only defaults; it takes this one as the operator itself.
torch.jit._builtins._register_builtin(pola_attention, registration.FORWARD)
