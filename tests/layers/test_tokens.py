"""Tokens and maps are views of one another."""

import pytest
import torch

from polaformer.layers.tokens import check_tokens, map_to_tokens, tokens_to_map


@pytest.mark.parametrize("size", [[23], [5, 7], [3, 5, 7]])
def test_round_trip_is_a_view_with_the_last_axis_fastest(size):
    x = torch.randn(2, torch.Size(size).numel(), 3)
    grid = tokens_to_map(x, size)
    assert grid.shape == (2, 3, *size)
    assert torch.equal(grid[1, 2].flatten(), x[1, :, 2])
    assert grid.data_ptr() == x.data_ptr()
    assert torch.equal(map_to_tokens(grid), x)


def test_count_includes_the_prefix():
    check_tokens(torch.empty(1, 37, 3), [5, 7], 3, 2, 2)
    with pytest.raises(ValueError, match=r"size must name a grid of x's 36 tokens, got \[5, 7\]"):
        check_tokens(torch.empty(1, 37, 3), [5, 7], 3, 2, 1)


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        ((35, 3), [5, 7], r"x must have shape \(batch, tokens, 3\), got \[35, 3\]"),
        ((1, 3, 5, 7), [5, 7], r"x must have shape \(batch, tokens, 3\), got \[1, 3, 5, 7\]"),
        ((1, 35, 4), [5, 7], r"x must have shape \(batch, tokens, 3\), got \[1, 35, 4\]"),
        ((1, 35, 3), 35, "size must be a list of 2 extents, one for each axis, got 35"),
        ((1, 35, 3), [35], r"size must be a list of 2 extents, one for each axis, got \[35\]"),
        ((1, 35, 3), [5, 7, 1], "size must be a list of 2 extents"),
        ((1, 35, 3), [-5, -7], r"size must name a grid of x's 35 tokens, got \[-5, -7\]"),
    ],
)
def test_wrong_tokens_or_grid(shape, size, message):
    with pytest.raises(ValueError, match=message):
        check_tokens(torch.empty(shape), size, 3, 2, 0)
