"""Tables bound to an image size: position embeddings, positional encodings of linear attention, window biases.

Each is a flattened grid. A position table (1, h·w, C) is stretched to another grid, bilinearly in the pyramid (as published)
and bicubically elsewhere. A bias table ((2h−1)·(2w−1), heads) of an h × w window holds one row for each offset between
two tokens: in a smaller window each offset keeps its row, for a larger window the table is stretched bicubically.
"""

import math
from typing import List, Tuple

from timm.layers import register_notrace_function
from torch import Tensor

from ..layers.positions import resize_grid

Grid = Tuple[int, int]  # rows, columns; of the window, for a bias table


def fit_table(name: str, table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Fit the table of parameter `name` to another grid; the very same tensor if the grids are equal."""
    if old == new:
        return table
    if name.endswith("relative_position_bias_table"):
        return fit_bias_table(table, [old[0], old[1]], [new[0], new[1]])
    return resize_grid(table, [old[0], old[1]], [new[0], new[1]], mode_of(name))


def mode_of(name: str) -> str:
    """Return the interpolation of position table `name`; the pyramid's tables end in the number of their stage."""
    return "bilinear" if name[-1:].isdigit() else "bicubic"


@register_notrace_function
def fit_bias_table(table: Tensor, old: List[int], new: List[int]) -> Tensor:
    """Fit a bias table ((2h−1)·(2w−1), heads) of window `old` = [h, w] to window `new`."""
    rows, columns = 2 * max(old[0], new[0]) - 1, 2 * max(old[1], new[1]) - 1
    grown = resize_grid(table[None], [2 * old[0] - 1, 2 * old[1] - 1], [rows, columns], "bicubic")
    top, left = (rows + 1) // 2 - new[0], (columns + 1) // 2 - new[1]
    offsets = grown.view(rows, columns, table.shape[1])[top : rows - top, left : columns - left]
    return offsets.reshape(-1, table.shape[1])


def grid_of(name: str, table: Tensor, expected: Grid) -> Grid:
    """Return the grid of a table in a file that does not say it: the expected one if it has as many rows, else a square.

    Raises:
        ValueError: neither fits.
    """
    bias = name.endswith("relative_position_bias_table")
    length = table.shape[0] if bias else table.shape[1]
    if length == _length(expected, bias):
        return expected
    side = math.isqrt(length)
    if side * side != length or (bias and side % 2 == 0):
        raise ValueError(
            f"img_size must be given to read {name} of {length} positions, which are not a square grid: "
            "the (height, width) the checkpoint was trained at"
        )
    return ((side + 1) // 2, (side + 1) // 2) if bias else (side, side)


def _length(grid: Grid, bias: bool) -> int:
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) if bias else grid[0] * grid[1]
