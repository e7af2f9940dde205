"""Parts of the pyramid: PVT's softmax attention, a stage of blocks, and the norm that released checkpoints hold in vain.

Letters: B batch, C channels, H × W feature map, N = H·W tokens.
"""

from typing import Any, List

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.positions import pad_to_multiple, resize_grid
from ..layers.tokens import tokens_to_map


class SpatialReductionAttention(nn.Module):
    """PVT's softmax attention: keys and values come from a map reduced by a strided convolution.

    y = softmax(q kᵀ / √h) v for each head of h channels, with k, v = kv(LayerNorm(sr(x))).

    Args:
        dim: Channels; divisible by num_heads.
        num_heads: Attention heads.
        sr_ratio: Stride r of the reduction; 1 = none.
        qkv_bias: Biases of q and kv.
        proj_drop: Dropout after the output projection.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.q = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.sr = nn.Conv2d(dim, dim, sr_ratio, stride=sr_ratio, **dd) if sr_ratio > 1 else None
        self.norm = nn.LayerNorm(dim, eps=1e-5, **dd) if sr_ratio > 1 else None
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, size: List[int]) -> Tensor:
        """Attend over tokens x (B, H·W, dim) of a map of `size` [H, W]."""
        B, N, C = x.shape
        q = self.q(x).reshape(B, N, self.num_heads, -1).transpose(1, 2)
        if self.sr is not None and self.norm is not None:
            x = self.sr(pad_to_multiple(tokens_to_map(x, size), [self.sr_ratio, self.sr_ratio]))
            x = self.norm(x.flatten(2).transpose(1, 2))
        k, v = self.kv(x).reshape(B, -1, 2, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(B, N, C)))


class Stage(nn.ModuleList):
    """Blocks of one stage, between a patch embedding and the next."""

    def forward(self, x: Tensor, pos_embed: Tensor, grid: List[int]) -> Tensor:
        """Add the position embedding of `grid` to patches x (B, H, W, C) and run the blocks; returns a map (B, C, H, W)."""
        size = [x.shape[1], x.shape[2]]
        x = x.flatten(1, 2) + resize_grid(pos_embed, grid, size, "bilinear")
        for block in self:
            x = block(x, size)
        return tokens_to_map(x, size)


class UnusedNorm(nn.Module):
    """The weight and bias of a LayerNorm that released checkpoints hold and no forward pass applies."""

    def __init__(self, dim: int, device: Any = None, dtype: Any = None):
        super().__init__()
        self.register_buffer("weight", torch.ones(dim, device=device, dtype=dtype))
        self.register_buffer("bias", torch.zeros(dim, device=device, dtype=dtype))
