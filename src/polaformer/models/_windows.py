"""Windows over a map, at any map size (the map is padded at the bottom and right, rolled, and cut), and Swin's attention in them.

Letters: B batch, C channels, H × W map, h × w window, N = h·w tokens of a window, nW windows a map.

The only branch on sizes is whether a window covers the map on an axis, so a compiled model needs new code for a new size
only where that changes.
"""

from typing import Any, List

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.nn import functional as F

from ._tables import Grid, fit_bias_table


class WindowAttention(nn.Module):
    """Swin's softmax attention inside windows, with a learned bias for each offset between two tokens.

    y = softmax(q kᵀ / √d + bias + mask) v for each head of d channels.

    Args:
        dim: Channels; divisible by num_heads.
        num_heads: Attention heads.
        window: Window (rows, columns) of the bias table.
        qkv_bias: Biases of queries, keys and values.
        proj_drop: Dropout after the output projection.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window: Grid,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.grid_size = list(window)
        offsets = (2 * window[0] - 1) * (2 * window[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.empty(offsets, num_heads, **dd))
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x: Tensor, window: List[int], mask: Tensor) -> Tensor:
        """Attend inside windows x (B·nW, N, dim) of [h, w] tokens; mask (nW, N, N) is added to the scores."""
        groups, N, C = x.shape
        q, k, v = (
            self.qkv(x).reshape(groups, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        )
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + self._bias(window)
        scores = scores.unflatten(0, (-1, mask.shape[0])) + mask[:, None]
        x = scores.softmax(dim=-1).flatten(0, 1).to(v.dtype) @ v
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(groups, N, C)))

    def _bias(self, window: List[int]) -> Tensor:
        """Return the bias (heads, N, N) between the tokens of a window [h, w]."""
        table = fit_bias_table(self.relative_position_bias_table, self.grid_size, window)
        rows = torch.arange(window[0], device=table.device)
        columns = torch.arange(window[1], device=table.device)
        row_offset = rows[:, None] - rows + (window[0] - 1)
        column_offset = columns[:, None] - columns + (window[1] - 1)
        index = row_offset[:, None, :, None] * (2 * window[1] - 1) + column_offset[:, None]
        N = window[0] * window[1]
        return table[index.flatten()].reshape(N, N, -1).permute(2, 0, 1)


def window_of(size: List[int], limit: int) -> List[int]:
    """Return the window [h, w]: on each axis `limit` tokens, or the whole map if it has no more."""
    return [limit if size[0] > limit else size[0], limit if size[1] > limit else size[1]]


def shift_of(size: List[int], limit: int, shifted: bool) -> List[int]:
    """Return by how many tokens the windows are moved: half a window, or 0 on an axis that one window covers."""
    half = limit // 2 if shifted else 0
    return [half if size[0] > limit else 0, half if size[1] > limit else 0]


def _padded(size: List[int], window: List[int]) -> List[int]:
    return [(size[0] + window[0] - 1) // window[0] * window[0], (size[1] + window[1] - 1) // window[1] * window[1]]


def split_windows(x: Tensor, window: List[int], shift: List[int]) -> Tensor:
    """Cut a map (B, H, W, C) into windows (B·nW, N, C), after padding it and rolling it up and left by `shift`."""
    H, W = x.shape[1], x.shape[2]
    rows, columns = _padded([H, W], window)
    x = F.pad(x, [0, 0, 0, columns - W, 0, rows - H])
    return _cut(torch.roll(x, [-shift[0], -shift[1]], [1, 2]), window)


def _cut(x: Tensor, window: List[int]) -> Tensor:
    B, rows, columns, C = x.shape
    x = x.reshape(B, rows // window[0], window[0], columns // window[1], window[1], C)
    return x.transpose(2, 3).reshape(-1, window[0] * window[1], C)


def join_windows(windows: Tensor, size: List[int], window: List[int], shift: List[int]) -> Tensor:
    """Undo `split_windows`: windows (B·nW, N, C) to a map (B, H, W, C) of `size`."""
    rows, columns = _padded(size, window)
    C = windows.shape[2]
    x = windows.reshape(-1, rows // window[0], columns // window[1], window[0], window[1], C)
    x = x.transpose(2, 3).reshape(-1, rows, columns, C)
    return torch.roll(x, [shift[0], shift[1]], [1, 2])[:, : size[0], : size[1]]


def padding_mask(size: List[int], window: List[int], shift: List[int], device: torch.device) -> Tensor:
    """Return (nW, N), True for tokens that padding added."""
    return _regions(size, window, shift, device) == 4


def region_mask(size: List[int], window: List[int], shift: List[int], like: Tensor) -> Tensor:
    """Return (nW, N, N) in the dtype of `like`: -100 for pairs of tokens in one window that do not belong together, else 0.

    Rolling brings tokens from the top and left edges beside those at the bottom and right; padding adds tokens that are none.
    """
    regions = _regions(size, window, shift, like.device)
    apart = regions[:, :, None] != regions[:, None, :]
    # Finite, as in Swin: in a window of padding alone every pair of some rows may be forbidden.
    return torch.zeros_like(apart, dtype=like.dtype).masked_fill(apart, -100.0)


def _regions(size: List[int], window: List[int], shift: List[int], device: torch.device) -> Tensor:
    """Return (nW, N): 4 for padding, else 2 if the token came round the top edge, plus 1 if round the left one."""
    rows, columns = _padded(size, window)
    row = torch.arange(rows, device=device) + shift[0]
    column = torch.arange(columns, device=device) + shift[1]
    padding = (row % rows >= size[0])[:, None] | (column % columns >= size[1])
    came_round = (row >= rows).to(torch.int64)[:, None] * 2 + (column >= columns).to(torch.int64)
    regions = came_round.masked_fill(padding, 4)
    return _cut(regions[None, :, :, None], window).squeeze(2)
