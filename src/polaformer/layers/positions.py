"""Tables and maps brought to another size: positional encodings, padding to a stride."""

import math
from typing import List

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_function
from torch import Tensor


@register_notrace_function
def resize_grid(table: Tensor, grid: List[int], size: List[int], mode: str) -> Tensor:
    """Resize a table with one row a token from one token grid to another; equal grids return the table itself.

    Args:
        table: (1, product of grid, channels).
        grid: Extent of the stored grid on each axis; 1 to 3 axes. Empty: a table as long as the target is taken as it is,
            any other must be a square.
        size: Extent of the target grid on each axis.
        mode: `torch.nn.functional.interpolate` mode, e.g. 'linear' (1 axis), 'bicubic' (2), 'trilinear' (3); without
            antialiasing, align_corners=False.

    Returns:
        (1, product of size, channels), in the table's dtype.

    Raises:
        ValueError: grid is empty and the table is neither as long as the target nor a square.
    """
    length = table.shape[1]
    if len(grid) == 0:
        target = 1
        for extent in size:
            target *= extent
        if target == length:
            return table
        grid = _square(length)
    if grid == size:
        return table
    # Half-precision tables are resized in float32: bicubic weights are no half-precision numbers.
    dtype = torch.float64 if table.dtype == torch.float64 else torch.float32
    stored = table.to(dtype).transpose(1, 2).unflatten(2, grid)
    resized = F.interpolate(stored, size=size, mode=mode, align_corners=False)
    return resized.flatten(2).transpose(1, 2).to(table.dtype)


def _square(length: int) -> List[int]:
    side = int(math.sqrt(float(length)) + 0.5)
    if side * side != length:
        raise ValueError(
            f"grid_size must be given to resize a positional encoding of {length} entries, which is no square, got None"
        )
    return [side, side]


@register_notrace_function
def pad_to_multiple(x: Tensor, multiple: List[int]) -> Tensor:
    """Pad a map with zeros at the bottom and right until its height and width are multiples.

    Args:
        x: (B, C, H, W).
        multiple: (rows, columns).

    Returns:
        (B, C, H', W').
    """
    height, width = x.shape[2], x.shape[3]
    rows = (height + multiple[0] - 1) // multiple[0] * multiple[0]
    columns = (width + multiple[1] - 1) // multiple[1] * multiple[1]
    # No branch for maps that need nothing: a model compiled for dynamic sizes would guard on each of them.
    return F.pad(x, [0, columns - width, 0, rows - height])
