"""Resizing tables and padding maps."""

import pytest
import torch
import torch.nn.functional as F

from polaformer.layers.positions import pad_to_multiple, resize_grid


def test_equal_grid_is_the_table_itself():
    table = torch.randn(1, 35, 3)
    assert resize_grid(table, [5, 7], [5, 7], "bicubic") is table
    assert resize_grid(table, [], [7, 5], "bicubic") is table


@pytest.mark.parametrize(
    ("grid", "size", "mode"),
    [
        ([11], [17], "linear"),
        ([5, 7], [3, 13], "bicubic"),
        ([5, 7], [7, 5], "bilinear"),
        ([2, 3, 5], [3, 5, 7], "trilinear"),
    ],
)
def test_axes_keep_their_order(grid, size, mode):
    table = torch.randn(1, torch.Size(grid).numel(), 3, dtype=torch.float64)
    volume = table.reshape(*grid, 3).movedim(-1, 0)[None]
    expected = F.interpolate(volume, size, mode=mode, antialias=False).flatten(2).transpose(1, 2)
    torch.testing.assert_close(resize_grid(table, grid, size, mode), expected)


def test_table_without_grid_is_a_square():
    table = torch.randn(1, 25, 3)
    assert torch.equal(resize_grid(table, [], [3, 4], "bicubic"), resize_grid(table, [5, 5], [3, 4], "bicubic"))


def test_half_precision_is_resized_in_float32():
    table = torch.randn(1, 25, 3).bfloat16()
    resized = resize_grid(table, [5, 5], [7, 3], "bicubic")
    assert resized.dtype is torch.bfloat16
    assert torch.equal(resized, resize_grid(table.float(), [5, 5], [7, 3], "bicubic").bfloat16())


@pytest.mark.parametrize(("height", "width"), [(5, 7), (6, 7), (5, 6), (6, 6)])
def test_padding_is_zero_at_the_bottom_and_right(height, width):
    x = torch.randn(2, 3, height, width)
    padded = pad_to_multiple(x, [2, 3])
    assert padded.shape[2:] == (6, 9 if width == 7 else 6)
    assert torch.equal(padded[:, :, :height, :width], x)
    assert padded.sum().item() == pytest.approx(x.sum().item(), abs=1e-4)
