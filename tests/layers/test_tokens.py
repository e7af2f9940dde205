"""Tokens and maps are views of one another."""

import pytest
import torch

from polaformer.layers.tokens import check_token_count, map_to_tokens, tokens_to_map


@pytest.mark.parametrize("size", [[23], [5, 7], [3, 5, 7]])
def test_round_trip_is_a_view_with_the_last_axis_fastest(size):
    x = torch.randn(2, torch.Size(size).numel(), 3)
    grid = tokens_to_map(x, size)
    assert grid.shape == (2, 3, *size)
    assert torch.equal(grid[1, 2].flatten(), x[1, :, 2])
    assert grid.data_ptr() == x.data_ptr()
    assert torch.equal(map_to_tokens(grid), x)


def test_count_includes_the_prefix():
    check_token_count(torch.empty(1, 37, 3), [5, 7], 2)
    with pytest.raises(ValueError, match=r"size must name a grid of x's 36 tokens, got \[5, 7\]"):
        check_token_count(torch.empty(1, 37, 3), [5, 7], 1)
