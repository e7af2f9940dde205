"""The published formula of polarity-aware attention, as written in the paper, to measure against: no guard, no log domain."""

import torch
from torch import Tensor


def published_attention(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    """Attend with powers of the positive and negative parts, both streams one after the other; power is (H, D)."""
    power = power[:, None]
    positive_q, negative_q = torch.relu(q) ** power, torch.relu(-q) ** power
    features_k = torch.cat([torch.relu(k) ** power, torch.relu(-k) ** power], dim=-1)
    mean_k = features_k.mean(dim=-2, keepdim=True).mT
    root = k.shape[-2] ** -0.5
    cut = (v.shape[-1] + 1) // 2
    streams = []
    for halves, values in (((positive_q, negative_q), v[..., :cut]), ((negative_q, positive_q), v[..., cut:])):
        features_q = torch.cat(halves, dim=-1)
        state = (features_k.mT * root) @ (values * root).to(features_k.dtype)
        streams.append(features_q @ state / (features_q @ mean_k + 1e-6))
    return torch.cat(streams, dim=-1).to(v.dtype)
