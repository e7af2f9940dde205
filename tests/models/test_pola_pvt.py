"""The pyramid's own parts."""

from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from polaformer.models.pola_pvt import PolaPVT, SpatialReductionAttention


@pytest.mark.parametrize(("size", "sr_ratio"), [((3, 5), 1), ((6, 4), 2), ((7, 5), 3)])
def test_softmax_attention_is_the_formula(size, sr_ratio):
    torch.manual_seed(0)
    dim, heads = 12, 3
    attn: Any = SpatialReductionAttention(dim, heads, sr_ratio).double().eval()
    H, W = size
    x = torch.randn(2, H * W, dim, dtype=torch.float64)
    y = attn(x, [H, W])

    source = x
    if sr_ratio > 1:
        rows, columns = -(-H // sr_ratio), -(-W // sr_ratio)
        square = torch.zeros(2, rows * sr_ratio, columns * sr_ratio, dim, dtype=torch.float64)
        square[:, :H, :W] = x.view(2, H, W, dim)
        patches = square.view(2, rows, sr_ratio, columns, sr_ratio, dim).permute(0, 1, 3, 5, 2, 4).flatten(3)
        source = patches.flatten(1, 2) @ attn.sr.weight.flatten(1).T + attn.sr.bias
        source = F.layer_norm(source, (dim,), attn.norm.weight, attn.norm.bias, 1e-5)
    q, kv = x @ attn.q.weight.T + attn.q.bias, source @ attn.kv.weight.T + attn.kv.bias
    k, v = kv[..., :dim], kv[..., dim:]
    outputs = []
    for head in range(heads):
        part = slice(4 * head, 4 * head + 4)
        scores = q[..., part] @ k[..., part].mT / 2  # √4
        outputs.append(scores.exp() / scores.exp().sum(-1, keepdim=True) @ v[..., part])
    expected = torch.cat(outputs, -1) @ attn.proj.weight.T + attn.proj.bias
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)


def test_attention_of_each_stage_follows_the_arguments():
    model = PolaPVT(depths=(1, 1, 1, 1), attn_type="LSLS", la_sr_ratios="7531", device="meta")
    kinds = [type(getattr(model, f"block{i}")[0].attn).__name__ for i in (1, 2, 3, 4)]
    assert kinds == ["PolaAttention", "SpatialReductionAttention"] * 2
    assert [getattr(model, f"block{i}")[0].attn.sr_ratio for i in (1, 2, 3, 4)] == [7, 4, 3, 1]


def test_alpha_kernel_and_bias_reach_every_linear_layer():
    model = PolaPVT(depths=(1, 1, 1, 1), alpha=7, kernel_size=3, qkv_bias=False, device="meta")
    for i in (1, 2, 3, 4):
        attn = getattr(model, f"block{i}")[0].attn
        assert attn.alpha == 7
        assert attn.dwc.weight.shape[2:] == (3, 3)
        assert attn.qg.bias is None


def test_the_unused_norm_is_in_files_only():
    model: Any = timm.create_model("pola_pvt_nano")
    assert {"norm.weight", "norm.bias"} <= model.state_dict().keys()
    assert not [n for n, _ in model.named_parameters() if n.startswith("norm.")]
    x = torch.randn(1, 3, 32, 32)
    before = model.eval()(x)
    model.norm.weight.fill_(float("nan"))
    assert torch.equal(model(x), before)


def test_nano_is_small():
    model = timm.create_model("pola_pvt_nano", num_classes=10)
    assert sum(p.numel() for p in model.parameters()) < 1_000_000


def test_initial_weights():
    torch.manual_seed(0)
    model: Any = timm.create_model("pola_pvt_nano")
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.1)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert not module.bias.any()
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1)
        elif isinstance(module, nn.LayerNorm):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
    assert not model.block1[0].attn.positional_encoding.any()
    assert model.pos_embed1.std().item() == pytest.approx(0.02, rel=0.2)
