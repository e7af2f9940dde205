"""Token layouts: how a sequence of tokens lies on a line, a map or a volume."""

from typing import List

from timm.layers import register_notrace_function
from torch import Tensor


@register_notrace_function
def check_tokens(x: Tensor, size: List[int], dim: int, spatial_dims: int, num_prefix_tokens: int) -> None:
    """Check that x holds tokens of `dim` channels that fill their grid.

    Args:
        x: (B, num_prefix_tokens + product of size, dim).
        size: Extent of the token grid on each axis.
        dim: Channels.
        spatial_dims: Axes of the token grid.
        num_prefix_tokens: Tokens before the grid's.

    Raises:
        ValueError: x or size has another shape, or their counts differ.
    """
    if x.dim() != 3 or x.shape[2] != dim:
        raise ValueError(f"x must have shape (batch, tokens, {dim}), got {list(x.shape)}")
    if not isinstance(size, (list, tuple)) or len(size) != spatial_dims:
        raise ValueError(f"size must be a list of {spatial_dims} extents, one for each axis, got {size}")
    cells = 1
    smallest = 1
    for extent in size:
        cells *= extent
        smallest = min(smallest, extent)
    if smallest < 1 or x.shape[1] != num_prefix_tokens + cells:
        raise ValueError(f"size must name a grid of x's {x.shape[1] - num_prefix_tokens} tokens, got {size}")


def tokens_to_map(x: Tensor, size: List[int]) -> Tensor:
    """View tokens (B, product of size, C) as a map (B, C, *size), channels last in memory."""
    return x.transpose(1, 2).unflatten(2, size)


def map_to_tokens(x: Tensor) -> Tensor:
    """View a map (B, C, *size) as tokens (B, product of size, C)."""
    return x.flatten(2).transpose(1, 2)
