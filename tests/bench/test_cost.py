"""Counted costs against formulas written out by hand, and against memory that a real run keeps."""

from math import ceil

import pytest
import timm
import torch
from torch import nn

from polaformer import PolaAttention
from polaformer.bench import count_cost
from polaformer.bench.recognition import is_of_matmul_kind

PVT_TINY = {"dims": (64, 128, 320, 512), "heads": (1, 2, 5, 8), "mlp": (8, 8, 4, 4), "patches": (4, 2, 2, 2)}


def build(name, **arguments):
    with torch.device("meta"):
        return timm.create_model(name, **arguments).eval()


def pvt_tiny_stage(stage, height, width, softmax):
    """Multiply-adds of patches and two blocks of pola_pvt_tiny, and its map; softmax stages reduce keys 8, 4, 2, 1 times."""
    dim, heads, patch = PVT_TINY["dims"][stage], PVT_TINY["heads"][stage], PVT_TINY["patches"][stage]
    previous = PVT_TINY["dims"][stage - 1] if stage else 3
    height, width = ceil(height / patch), ceil(width / patch)
    tokens, head = height * width, dim // heads
    reduction = (8, 4, 2, 1)[stage]
    keys = ceil(height / reduction) * ceil(width / reduction)
    if softmax:
        reducing = keys * dim * dim * reduction**2 if reduction > 1 else 0
        attention = tokens * dim * dim + reducing + keys * dim * 2 * dim + 2 * tokens * keys * dim
    else:
        operator = heads * 2 * head * (head + 2) * 2 * tokens
        attention = tokens * dim * 4 * dim + operator + tokens * dim * 25
    block = attention + tokens * dim * dim + 2 * tokens * dim * dim * PVT_TINY["mlp"][stage]
    return tokens * dim * previous * patch**2, 2 * block, height, width


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("attn_type", ["LLLL", "LSLS"])
@pytest.mark.parametrize("size", [(224, 224), (391, 157)], ids=["224", "391x157"])
def test_pvt_tiny_equals_formula(size, attn_type, backend):
    model = build("pola_pvt_tiny", img_size=size, attn_type=attn_type)
    for module in model.modules():
        if isinstance(module, PolaAttention):
            module.backend = backend
    cost = count_cost(model, (3, 3, *size))
    parts = {part.name: part for part in cost.parts}
    total, (height, width) = 512 * 1000, size
    for stage, letter in enumerate(attn_type):
        embed, blocks, height, width = pvt_tiny_stage(stage, height, width, letter == "S")
        total += embed + blocks
        part = parts[f"block{stage + 1}"]
        assert part.multiply_adds == 3 * blocks
        assert part.attention == ("softmax" if letter == "S" else "polarity-aware linear")
        assert part.tokens == height * width
        reduction = (8, 4, 2, 1)[stage] if letter == "S" else 1
        assert part.keys == ceil(height / reduction) * ceil(width / reduction)
    assert cost.multiply_adds == pytest.approx(3 * total, rel=0.01)
    assert cost.parameters == sum(p.numel() for p in model.parameters()) == sum(p.parameters for p in cost.parts)
    assert not cost.uncounted


def test_written_out_and_windowed_softmax():
    parts = {part.name: part for part in count_cost(build("pola_swin_tiny"), (2, 3, 224, 224)).parts}
    assert [parts[f"layers.{i}"].attention for i in range(4)] == ["polarity-aware linear"] * 2 + ["softmax"] * 2
    assert (parts["layers.2"].tokens, parts["layers.2"].keys) == (14 * 14, 7 * 7)


def test_list_of_equal_blocks_is_one_part():
    cost = count_cost(build("vit_tiny_patch16_224"), (1, 3, 224, 224))
    (blocks,) = [part for part in cost.parts if part.attention]
    assert (blocks.name, blocks.attention, blocks.tokens) == ("blocks", "softmax", 197)
    # qkv, scores and their product with v, projection, MLP.
    by_hand = 12 * (197 * 192 * 576 + 2 * 197 * 197 * 192 + 197 * 192 * 192 + 2 * 197 * 192 * 768)
    assert blocks.multiply_adds == by_hand


def test_activations_equal_what_a_run_keeps():
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))
    # The input for the first weights' gradient, then what GELU takes and what it gives; the output is not kept.
    assert count_cost(model, (11, 5)).activation_bytes == 4 * 11 * (5 + 7 + 7)


@torch.library.custom_op("polaformer_test::unknown_product", mutates_args=())
def unknown_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


@unknown_product.register_fake
def _(x, y):
    return x.new_empty(x.shape[0], y.shape[1])


class Unknown(nn.Module):
    def forward(self, x):
        return unknown_product(x, x.T)


def test_unregistered_operator_withholds_the_total():
    cost = count_cost(nn.Sequential(nn.Linear(5, 7), Unknown()).requires_grad_(False), (11, 5))
    assert cost.multiply_adds is None
    assert cost.uncounted == {"polaformer_test::unknown_product": 1}
    assert [part.multiply_adds for part in cost.parts] == [11 * 5 * 7, None]


def test_pytorchs_own_unregistered_operator_withholds_the_total():
    class Vector(nn.Module):
        def forward(self, x):
            return torch.mv(x, x[0])

    cost = count_cost(Vector(), (5, 5))
    assert cost.multiply_adds is None
    assert cost.uncounted == {"aten::mv": 1}


@pytest.mark.parametrize("branch", ["none", "dcn"])
def test_deformable_branch_is_counted(branch):
    class Map(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = PolaAttention(6, 1, branch=branch, kernel_size=3)

        def forward(self, x):
            return self.attn(x, [7, 5])

    # The offsets come from a full convolution of each head's channels.
    plain = 35 * 6 * 24 + 35 * 36 + 2 * 6 * 8 * 2 * 35
    offsets = 35 * 18 * 6 * 9
    expected = plain + (35 * 6 * 9 + offsets if branch == "dcn" else 0)
    assert count_cost(Map(), (1, 35, 6)).multiply_adds == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(
            (f"aten.{name}", True)
            for name in ("_int_mm", "addmv", "dot", "mkldnn_convolution", "_thnn_fused_lstm_cell")
        ),
        *(
            (f"aten.{name}", True)
            for name in ("_scaled_dot_product_flash_attention_for_cpu", "mkldnn_linear", "addmm_")
        ),
        *((f"aten.{name}", False) for name in ("mul", "upsample_bilinear2d", "lgamma", "cummax", "im2col", "_softmax")),
        ("quantized.linear", True),
        ("prims.mul", False),
    ],
)
def test_matmul_kind(name, expected):
    assert is_of_matmul_kind(name) is expected
