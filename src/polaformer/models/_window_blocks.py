"""Parts of the window models: blocks that mix tokens inside windows, the step between stages, a stage.

Letters: B batch, C channels, H × W map.
"""

from abc import ABC, abstractmethod
from typing import Any, List

import torch
from timm.layers import DropPath, Mlp, register_notrace_module
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from ..layers.positions import pad_to_multiple
from ._windows import join_windows, padding_mask, region_mask, shift_of, split_windows, window_of


class _Block(nn.Module, ABC):
    """Pre-norm transformer block over a map x (B, H, W, C): x += mix(norm1(x)), then x += mlp(norm2(x)).

    `limit` is the largest window side; in `shifted` blocks the windows lie half a window further down and to the right
    on each axis they do not cover.
    """

    def __init__(
        self,
        attn: nn.Module,
        dim: int,
        mlp_ratio: float,
        limit: int,
        shifted: bool,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.grad_checkpointing = False
        self.limit = limit
        self.shifted = shifted
        self.norm1 = nn.LayerNorm(dim, eps=1e-5, **dd)
        self.attn = attn
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=1e-5, **dd)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop, **dd)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.grad_checkpointing and not torch.jit.is_scripting():
            return checkpoint(self._residuals, x)
        return self._residuals(x)

    def _residuals(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.mix(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))

    @abstractmethod
    def mix(self, x: Tensor) -> Tensor:
        """Mix tokens (B, H, W, C)."""


@register_notrace_module  # which windows there are depends on the map's size
class LinearBlock(_Block):
    """Block with polarity-aware linear attention over the whole map, or inside windows where the map is larger than one."""

    def mix(self, x: Tensor) -> Tensor:
        """Mix tokens (B, H, W, C)."""
        H, W = x.shape[1], x.shape[2]
        window = window_of([H, W], self.limit)
        if max(H, W) <= self.limit:
            return self.attn(x.flatten(1, 2), window).unflatten(1, [H, W])
        shift = shift_of([H, W], self.limit, self.shifted)
        # No mask keeps the two sides of a rolled map apart: the released models have none here.
        padding = padding_mask([H, W], window, shift, x.device).repeat(x.shape[0], 1)
        mixed = self.attn(split_windows(x, window, shift), window, padding)
        return join_windows(mixed, [H, W], window, shift)


@register_notrace_module  # as above
class SoftmaxBlock(_Block):
    """Block with softmax attention inside (shifted) windows."""

    def mix(self, x: Tensor) -> Tensor:
        """Mix tokens (B, H, W, C)."""
        H, W = x.shape[1], x.shape[2]
        window = window_of([H, W], self.limit)
        shift = shift_of([H, W], self.limit, self.shifted)
        mask = region_mask([H, W], window, shift, x)
        mixed = self.attn(split_windows(x, window, shift), window, mask)
        return join_windows(mixed, [H, W], window, shift)


class PatchMerging(nn.Module):
    """Halve a map (B, H, W, C) to (B, ⌈H/2⌉, ⌈W/2⌉, 2C): four neighbours concatenated, norm, linear; odd sides get a zero row."""

    def __init__(self, dim: int, device: Any = None, dtype: Any = None):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, eps=1e-5, device=device, dtype=dtype)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Merge neighbours in the order (0, 0), (1, 0), (0, 1), (1, 1) of (row, column)."""
        x = pad_to_multiple(x.permute(0, 3, 1, 2), [2, 2]).permute(0, 2, 3, 1)
        neighbours = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.reduction(self.norm(torch.cat(neighbours, dim=-1)))


class Stage(nn.Module):
    """Blocks of one stage, then the step to the next."""

    def __init__(self, blocks: List[nn.Module], downsample: nn.Module):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return the map (B, H, W, C) the next stage starts from."""
        return self.downsample(self.blocks(x))
