"""The definition of polarity-aware attention with its N×M matrices, an independent value for every test of the operator."""

import torch
from torch import Tensor


def quadratic_attention(
    q: Tensor, k: Tensor, v: Tensor, power: Tensor, padding: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    """Compute the attention of one (B, H, N, D) problem from its similarity matrices; power broadcasts to (B, H, 1, D)."""
    positive_q, negative_q = _features(q, power)
    positive_k, negative_k = _features(k, power)
    same = positive_q @ positive_k.mT + negative_q @ negative_k.mT
    opposite = positive_q @ negative_k.mT + negative_q @ positive_k.mT
    cut = (v.shape[-1] + 1) // 2
    if padding is None:
        padding = torch.zeros(k.shape[0], k.shape[2], dtype=torch.bool)
    valid = (~padding).to(q.dtype)[:, None, None, :]
    count = valid.sum(-1, keepdim=True).clamp(min=1)
    outputs = []
    for similarity, values in ((same, v[..., :cut]), (opposite, v[..., cut:])):
        weights = similarity * valid / count
        outputs.append(weights @ values / (weights.sum(-1, keepdim=True) + eps))
    return torch.cat(outputs, dim=-1)


def _features(x: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    # x^p only where x is not 0, so that autograd gives 0 there for every p.
    features = []
    for half in (x, -x):
        safe = torch.where(half > 0, half, torch.ones_like(half))
        features.append(torch.where(half > 0, safe**power, torch.zeros_like(half)))
    return features[0], features[1]
