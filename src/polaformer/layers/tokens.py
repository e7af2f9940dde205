"""Token layouts: how a sequence of tokens lies on a line, a map or a volume."""

from typing import List

from timm.layers import register_notrace_function
from torch import Tensor


@register_notrace_function
def check_token_count(x: Tensor, size: List[int], num_prefix_tokens: int) -> None:
    """Check that the tokens fill their grid.

    Args:
        x: (B, num_prefix_tokens + product of size, C).
        size: Extent of the token grid on each axis.
        num_prefix_tokens: Tokens before the grid's.

    Raises:
        ValueError: the counts differ.
    """
    expected = num_prefix_tokens
    cells = 1
    for extent in size:
        cells *= extent
    expected += cells
    if x.shape[1] != expected:
        raise ValueError(f"size must name a grid of x's {x.shape[1] - num_prefix_tokens} tokens, got {size}")


def tokens_to_map(x: Tensor, size: List[int]) -> Tensor:
    """View tokens (B, product of size, C) as a map (B, C, *size), channels last in memory."""
    return x.transpose(1, 2).unflatten(2, size)


def map_to_tokens(x: Tensor) -> Tensor:
    """View a map (B, C, *size) as tokens (B, product of size, C)."""
    return x.flatten(2).transpose(1, 2)
