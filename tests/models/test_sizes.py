"""Every image size: maps, positions, windows, padding."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from polaformer.models import PolaDeiT, PolaPVT, PolaSwin
from polaformer.models._tables import fit_bias_table
from polaformer.models._windows import join_windows, padding_mask, region_mask, shift_of, split_windows, window_of

FAMILIES: dict[str, Any] = {
    "pvt": lambda **a: PolaPVT(embed_dims=(4, 6, 10, 12), num_heads=(1, 3, 5, 2), depths=(1, 2, 1, 1), **a),
    "pvt_reduced": lambda **a: PolaPVT(
        embed_dims=(4, 6, 10, 12),
        num_heads=(1, 3, 5, 2),
        depths=(1, 1, 1, 2),
        attn_type="LLSS",
        la_sr_ratios="8321",
        **a,
    ),
    "swin": lambda **a: PolaSwin(embed_dim=6, depths=(2, 2, 2, 2), num_heads=(1, 2, 3, 4), window_size=9, **a),
    "swin_whole_map": lambda **a: PolaSwin(
        embed_dim=6, depths=(1, 2, 2, 1), num_heads=(1, 2, 3, 4), window_size=None, **a
    ),
    "deit": lambda **a: PolaDeiT(embed_dim=12, depth=2, num_heads=3, **a),
}
SIZES = [(33, 65), (97, 131), (112, 112), (225, 319), (32, 256), (19, 5), (1, 1)]


@pytest.fixture(params=list(FAMILIES))
def family(request):
    return FAMILIES[request.param]


def random_tables(model):
    """Give zero-initialised tables something to be resized wrongly."""
    with torch.no_grad():
        for name in model.table_grids(model.img_size):
            model.get_parameter(name).normal_()
    return model.eval()


@pytest.mark.parametrize("size", SIZES)
def test_any_size_runs_forward_and_backward(family, size):
    model = family(num_classes=7).train()
    x = torch.randn(2, 3, *size, requires_grad=True)
    maps = model.forward_intermediates(x, intermediates_only=True)
    for info, map_ in zip(model.feature_info, maps):
        assert map_.shape[2:] == tuple(math.ceil(side / info["reduction"]) for side in size)
    model(x).square().sum().backward()
    assert x.grad is not None
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("size", [(96, 96), (33, 65), (112, 176)])
def test_running_at_a_size_equals_having_been_set_to_it(family, size):
    model = random_tables(family(img_size=64, num_classes=7).double())
    x = torch.randn(1, 3, *size, dtype=torch.float64)
    on_the_fly = model(x)
    model.set_input_size(size)
    torch.testing.assert_close(model(x), on_the_fly, rtol=1e-9, atol=1e-9)


def test_set_input_size_to_the_same_size_changes_nothing(family):
    model = random_tables(family(img_size=(64, 96)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.set_input_size((64, 96))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_chain_of_sizes_resamples_from_the_true_grid():
    model: Any = random_tables(PolaPVT(embed_dims=(2, 2, 2, 2), num_heads=(1, 1, 1, 1), depths=(1, 1, 1, 1)))
    table = model.pos_embed1.detach()
    grid = (56, 56)
    for size in ((800, 1008), (640, 480)):
        model.set_input_size(size)
        square = table.reshape(1, *grid, 2).permute(0, 3, 1, 2)
        grid = (size[0] // 4, size[1] // 4)
        table = F.interpolate(square, size=grid, mode="bilinear").flatten(2).transpose(1, 2)
        torch.testing.assert_close(model.pos_embed1.detach(), table)


def test_every_multiple_of_32_gives_the_feature_grid():
    pyramid: Any = PolaPVT(embed_dims=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), depths=(1, 1, 1, 1), device="meta")
    window: Any = PolaSwin(embed_dim=1, num_heads=(1, 1, 1, 1), device="meta")
    sides = range(32, 2049, 32)
    for height, width in zip(sides, reversed(sides)):
        grids = [(height // r, width // r) for r in (4, 8, 16, 32)]
        x = torch.empty(1, 3, height, width, device="meta")
        merged = window.patch_embed(x)
        for stage, grid in enumerate(grids):
            x = getattr(pyramid, f"patch_embed{stage + 1}")(x).permute(0, 3, 1, 2)
            assert x.shape[2:] == grid
            assert merged.shape[1:3] == grid
            merged = window.layers[stage].downsample(merged)
        assert set(pyramid.table_grids((height, width)).values()) == set(grids)


@pytest.mark.parametrize("size", [(31, 64), 16])
def test_too_small_to_build(size):
    with pytest.raises(ValueError, match="img_size must be at least 32 px"):
        PolaPVT(img_size=size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attn_type": "LLL"}, "attn_type must be four letters"),
        ({"attn_type": "LLXS"}, "attn_type must be four letters"),
        ({"la_sr_ratios": "8420"}, "la_sr_ratios must be four digits"),
    ],
)
def test_wrong_stage_tables(arguments, message):
    with pytest.raises(ValueError, match=message):
        PolaPVT(**arguments)


@pytest.mark.parametrize("arguments", [{"window_size": 0}, {"softmax_window_size": 0}])
def test_wrong_window(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be at least 1, got 0"):
        PolaSwin(**arguments)


# ---- windows, against loops over tokens


@pytest.mark.parametrize("size", [[5, 8], [9, 4], [3, 7], [8, 8]])
@pytest.mark.parametrize("shifted", [False, True])
def test_windows_round_trip_and_regions(size, shifted):
    limit = 4
    window, shift = window_of(size, limit), shift_of(size, limit, shifted)
    H, W = size
    tokens = torch.arange(1, H * W + 1, dtype=torch.float64).view(1, H, W, 1).repeat(2, 1, 1, 3)
    windows = split_windows(tokens, window, shift)
    assert torch.equal(join_windows(windows, size, window, shift), tokens)

    where = windows[: len(windows) // 2, :, 0].long()  # of the first image: which token lies where, 0 = padding
    padding = padding_mask(size, window, shift, torch.device("cpu"))
    assert torch.equal(padding, where == 0)
    mask = region_mask(size, window, shift, tokens)
    for group, members in enumerate(where.tolist()):
        for i, a in enumerate(members):
            for j, b in enumerate(members):
                if a and b:
                    rows, columns = abs((a - 1) // W - (b - 1) // W), abs((a - 1) % W - (b - 1) % W)
                    allowed = rows < window[0] and columns < window[1]
                else:
                    allowed = a == b == 0
                assert mask[group, i, j].item() == (0 if allowed else -100), (group, a, b)


def test_windows_equal_separate_calls():
    torch.manual_seed(0)
    model: Any = PolaSwin(img_size=64, embed_dim=6, num_heads=(1, 2, 3, 4), window_size=8)
    block = model.double().layers[0].blocks[0].eval()
    x = torch.randn(1, 16, 24, 6, dtype=torch.float64)
    mixed = block.mix(x)
    for row in (0, 8):
        for column in (0, 8, 16):
            window = x[:, row : row + 8, column : column + 8]
            alone = block.attn(window.flatten(1, 2), [8, 8]).unflatten(1, (8, 8))
            torch.testing.assert_close(mixed[:, row : row + 8, column : column + 8], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attn_type", ["LLLL", "SSSS"])
def test_padded_tokens_are_never_attended_to(attn_type):
    # 11 = 8 + 3 tokens a side: without masks the padding of the last windows would take part in their averages.
    torch.manual_seed(0)
    arguments: Any = {"embed_dim": 6, "num_heads": (1, 2, 3, 4), "window_size": 8, "softmax_window_size": 8}
    model: Any = PolaSwin(attn_type=attn_type, **arguments)
    block = model.double().layers[0].blocks[0].eval()
    x = torch.randn(1, 11, 11, 6, dtype=torch.float64)
    corner = x[:, 8:, 8:]
    if (
        attn_type == "LLLL"
    ):  # the positions of a small window are stretched, so hand it those of the corner of a whole one
        encoding = block.attn.positional_encoding.detach().view(1, 8, 8, 6)[:, :3, :3].reshape(1, 9, 6)
        block.attn.positional_encoding.data.normal_()
        encoding = block.attn.positional_encoding.detach().view(1, 8, 8, 6)[:, :3, :3].reshape(1, 9, 6)
    mixed = block.mix(x)[:, 8:, 8:]
    if attn_type == "LLLL":
        block.attn.positional_encoding = torch.nn.Parameter(encoding)
        block.attn.grid_size = [3, 3]
    torch.testing.assert_close(block.mix(corner), mixed, rtol=1e-9, atol=1e-12)


def test_bias_table_keeps_each_offset_in_a_smaller_window():
    table = torch.randn((2 * 5 - 1) * (2 * 7 - 1), 3)
    fitted = fit_bias_table(table, [5, 7], [4, 2]).view(7, 3, 3)
    for row in range(-3, 4):
        for column in range(-1, 2):
            assert torch.equal(fitted[row + 3, column + 1], table.view(9, 13, 3)[row + 4, column + 6])
    assert torch.equal(fit_bias_table(table, [5, 7], [5, 7]), table)


def test_bias_table_is_stretched_for_a_larger_window():
    table = torch.randn(5 * 5, 2, dtype=torch.float64)
    grid = table.T.reshape(1, 2, 5, 5)
    expected = F.interpolate(grid, size=(9, 13), mode="bicubic")[0].flatten(1).T
    torch.testing.assert_close(fit_bias_table(table, [3, 3], [5, 7]), expected, rtol=1e-12, atol=1e-12)
