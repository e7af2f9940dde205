"""The layers: published values, any token grid, padding, prefix tokens, branches, and what tracers make of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from timm.models._features_fx import create_feature_extractor
from torch import nn

from polaformer import PolaAttention, PolaLinearAttention

DATA = Path(__file__).parents[1] / "data_files"


def golden(index):
    path = DATA / f"attention_{index}.safetensors"
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["config"]), load_file(path)


def randomised(layer, seed=0):
    """Move every parameter off its initial value, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter) * 0.3)
    return layer


def tokens(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("index", range(5))
def test_published_layer_outputs_and_all_gradients(index):
    config, values = golden(index)
    height, width = config.pop("height"), config.pop("width")
    layer = PolaLinearAttention(**config).double()
    layer.load_state_dict({name[6:]: value for name, value in values.items() if name.startswith("param.")})
    x = values["input"].requires_grad_()
    output = layer(x, height, width)
    output.backward(values["grad_output"])
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(output, values["output"], **close)
    torch.testing.assert_close(x.grad, values["grad_input"], **close)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, values[f"grad.{name}"], **close, msg=lambda m, n=name: f"{n}: {m}")


def test_published_example_runs_unchanged(capsys):
    layer = PolaLinearAttention(dim=64, num_patches=196, num_heads=4, qkv_bias=True)
    assert layer(torch.randn(2, 196, 64), 14, 14).shape == (2, 196, 64)
    assert capsys.readouterr().out == ""


def test_parameters_start_as_specified():
    layer = PolaLinearAttention(24, 35, num_heads=3, qkv_bias=True, sr_ratio=2)
    shapes = {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}
    assert shapes == {
        "qg.weight": (48, 24), "qg.bias": (48,), "kv.weight": (48, 24), "kv.bias": (48,),
        "sr.weight": (24, 24, 2, 2), "sr.bias": (24,), "norm.weight": (24,), "norm.bias": (24,),
        "positional_encoding": (1, 8, 24), "scale": (1, 1, 24), "power": (1, 3, 1, 8),
        "dwc.weight": (8, 1, 5, 5), "dwc.bias": (8,), "proj.weight": (24, 24), "proj.bias": (24,),
    }  # fmt: skip
    assert not any(layer.get_parameter(name).any() for name in ("positional_encoding", "scale", "power"))
    assert layer.norm.eps == 1e-5


@pytest.mark.parametrize(("name", "value"), [("qk_scale", 0.5), ("attn_drop", 0.1)])
def test_arguments_without_effect_say_so(name, value):
    with pytest.warns(UserWarning, match=f"{name} has no effect in linear attention, got {value}"):
        PolaLinearAttention(8, 4, num_heads=2, **{name: value})


@pytest.mark.parametrize("sr_ratio", [1, 2, 3])
@pytest.mark.parametrize("value_resize", ["sequence", "map"])
@pytest.mark.parametrize(("height", "width"), [(7, 5), (3, 11), (12, 12), (2, 2)])
def test_any_map_size(height, width, sr_ratio, value_resize):
    layer = PolaLinearAttention(24, 36, num_heads=3, sr_ratio=sr_ratio, value_resize=value_resize)
    x = torch.randn(2, height * width, 24, requires_grad=True)
    output = layer(x, height, width)
    assert output.shape == x.shape
    output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_positions_are_resized_bicubically_to_the_key_map():
    layer = randomised(PolaLinearAttention(8, 25, num_heads=2)).double()
    x = tokens(2, 21, 8)
    output = layer(x, 3, 7)
    table = F.interpolate(layer.positional_encoding.reshape(1, 5, 5, 8).permute(0, 3, 1, 2), (3, 7), mode="bicubic")
    native = PolaLinearAttention(8, 21, num_heads=2, grid_size=(3, 7)).double()
    state = layer.state_dict() | {"positional_encoding": table.flatten(2).transpose(1, 2)}
    native.load_state_dict(state)
    torch.testing.assert_close(output, native(x, 3, 7), rtol=1e-12, atol=1e-12)


def test_grid_size_decides_whether_equal_counts_are_resized():
    x = tokens(1, 35, 8)
    free = randomised(PolaLinearAttention(8, 35, num_heads=2)).double()
    fixed = PolaLinearAttention(8, 35, num_heads=2, grid_size=(5, 7)).double()
    fixed.load_state_dict(free.state_dict())
    assert torch.equal(free(x, 5, 7), fixed(x, 5, 7))
    assert not torch.allclose(free(x, 7, 5), fixed(x, 7, 5))


def test_unknown_grid_is_an_error_that_names_the_fix():
    layer = PolaLinearAttention(8, 35, num_heads=2)
    with pytest.raises(ValueError, match="grid_size must be given to resize a positional encoding of 35 entries"):
        layer(torch.randn(1, 36, 8), 6, 6)


def test_token_count_must_match_the_grid():
    layer = PolaLinearAttention(8, 16, num_heads=2)
    with pytest.raises(ValueError, match=r"size must name a grid of x's 320 tokens, got \[17, 19\]"):
        layer(torch.randn(1, 320, 8), 17, 19)
    assert layer(torch.randn(1, 320, 8), 16, 20).shape == layer(torch.randn(1, 320, 8), 320, 1).shape == (1, 320, 8)


def test_reduction_pads_at_the_bottom_and_right():
    layer = randomised(PolaLinearAttention(8, 16, num_heads=2, sr_ratio=2)).double()
    x = tokens(1, 15, 8)
    seen = []
    layer.sr.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    layer(x, 3, 5)
    expected = torch.zeros(1, 8, 4, 6, dtype=torch.float64)
    expected[:, :, :3, :5] = x.transpose(1, 2).reshape(1, 8, 3, 5)
    assert torch.equal(seen[0], expected)


def test_map_resize_of_values_is_bilinear_in_two_dimensions():
    layers = {
        name: randomised(PolaLinearAttention(8, 16, num_heads=2, sr_ratio=2, value_resize=name)).double()
        for name in ("map", "sequence")
    }
    x = tokens(1, 48, 8)
    seen = []
    layers["map"].dwc.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    outputs = {name: layer(x, 6, 8) for name, layer in layers.items()}
    layer = layers["map"]
    reduced = layer.norm(layer.sr(x.transpose(1, 2).reshape(1, 8, 6, 8)).flatten(2).transpose(1, 2))
    values = layer.kv(reduced)[..., 8:].transpose(1, 2).reshape(1, 8, 3, 4)
    torch.testing.assert_close(seen[0], F.interpolate(values, (6, 8), mode="bilinear"), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(outputs["map"], outputs["sequence"])


def test_fused_projection_is_the_two_projections_side_by_side():
    fused = randomised(PolaAttention(24, 3, grid_size=(5, 7), projection="qkvg")).double()
    split = PolaAttention(24, 3, grid_size=(5, 7)).double()
    state = fused.state_dict()
    for kind in ("weight", "bias"):
        q, k, v, g = state.pop(f"qkvg.{kind}").chunk(4)
        state |= {f"qg.{kind}": torch.cat([q, g]), f"kv.{kind}": torch.cat([k, v])}
    split.load_state_dict(state)
    x = tokens(2, 35, 24)
    torch.testing.assert_close(fused(x, [5, 7]), split(x, [5, 7]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dims", "size"), [(1, [23]), (2, [5, 7]), (3, [3, 5, 7])])
def test_convolution_runs_over_the_token_grid(dims, size):
    layer = randomised(PolaAttention(12, 3, spatial_dims=dims, kernel_size=3)).double()
    x = tokens(2, torch.Size(size).numel(), 12)
    without = PolaAttention(12, 3, spatial_dims=dims, branch="none").double()
    without.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("dwc")})
    gate = layer.qg(x)[..., 12:]
    values = layer.kv(x)[..., 12:].transpose(1, 2).reshape(2 * 3, 4, *size)
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims](4, 4, 3, padding=1, groups=4).double()
    convolution.load_state_dict({"weight": layer.dwc.weight, "bias": layer.dwc.bias})
    local = convolution(values).reshape(2, 12, -1).transpose(1, 2)
    expected = without(x, size) + F.linear(local * gate, layer.proj.weight)
    torch.testing.assert_close(layer(x, size), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("prefix", [0, 2])
def test_padded_batch_equals_unpadded_single_runs(prefix):
    layer = randomised(PolaAttention(12, 3, spatial_dims=1, num_prefix_tokens=prefix)).double()
    x = tokens(3, prefix + 17, 12)
    lengths = [17, 5, 1]
    mask = torch.arange(prefix + 17)[None] >= prefix + torch.tensor(lengths)[:, None]
    x[mask] = 1e3
    output = layer(x, [17], mask)
    for i, length in enumerate(lengths):
        single = layer(x[i : i + 1, : prefix + length], [length])
        torch.testing.assert_close(output[i : i + 1, : prefix + length], single, rtol=1e-10, atol=1e-12)


def test_padding_takes_no_gradient():
    layer = randomised(PolaAttention(12, 3, spatial_dims=1)).double()
    x = tokens(2, 11, 12).requires_grad_()
    mask = torch.zeros(2, 11, dtype=torch.bool)
    mask[0, 7:] = True
    (grad,) = torch.autograd.grad(layer(x, [11], mask)[~mask].square().sum(), x)
    assert (grad[mask] == 0).all()
    assert (grad[~mask] != 0).any()


def test_mask_with_reduction_is_refused():
    layer = PolaAttention(12, 3, sr_ratio=2)
    with pytest.raises(ValueError, match="key_padding_mask must be None with sr_ratio > 1, got a mask and sr_ratio 2"):
        layer(torch.randn(1, 16, 12), [4, 4], torch.zeros(1, 16, dtype=torch.bool))


@pytest.mark.parametrize("sr_ratio", [1, 2])
def test_prefix_tokens_attend_but_are_not_convolved(sr_ratio):
    layer = randomised(PolaAttention(12, 3, grid_size=(3, 4), num_prefix_tokens=2, sr_ratio=sr_ratio)).double()
    plain = PolaAttention(12, 3, grid_size=(3, 4), num_prefix_tokens=2, sr_ratio=sr_ratio, branch="none").double()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("dwc")})
    x = tokens(2, 2 + 5 * 7, 12)
    output, without = layer(x, [5, 7]), plain(x, [5, 7])
    torch.testing.assert_close(output[:, :2], without[:, :2], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(output[:, 2:], without[:, 2:])
    moved = x.clone()
    moved[:, 0] += 1
    assert not torch.allclose(layer(moved, [5, 7])[:, 5], output[:, 5])


def test_prefix_tokens_have_no_position():
    layer = randomised(PolaAttention(12, 3, grid_size=(1, 5), num_prefix_tokens=1, branch="none")).double()
    bare = PolaAttention(12, 3, num_prefix_tokens=1, branch="none").double()
    state = layer.state_dict()
    positions = state.pop("positional_encoding")
    bare.load_state_dict(state)
    x = tokens(1, 6, 12)

    def add_positions(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output + F.pad(positions, [0, 12, 1, 0])  # k is the first half of kv

    bare.kv.register_forward_hook(add_positions)
    torch.testing.assert_close(layer(x, [1, 5]), bare(x, [1, 5]), rtol=1e-12, atol=1e-12)


def test_deformable_branch_starts_equal_to_the_plain_one_and_moves():
    plain = randomised(PolaAttention(12, 3, kernel_size=3))
    deformable = PolaAttention(12, 3, kernel_size=3, branch="dcn")
    state = {k.replace("dwc.", "dcn."): v for k, v in plain.state_dict().items()}
    missing, unexpected = deformable.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["dcn.offset.weight", "dcn.offset.bias"], [])
    x = tokens(2, 35, 12, dtype=torch.float32)
    torch.testing.assert_close(deformable(x, [5, 7]), plain(x, [5, 7]), rtol=1e-4, atol=1e-5)
    deformable.dcn.offset.bias.data.fill_(0.4)
    assert not torch.allclose(deformable(x, [5, 7]), plain(x, [5, 7]), atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 5}, "num_heads must divide dim = 12, got 5"),
        ({"num_heads": 0}, "num_heads must be a whole number of at least 1, got 0"),
        ({"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        ({"dim": 12.0}, r"dim must be a whole number of at least 1, got 12\.0"),
        ({"num_prefix_tokens": -1}, "num_prefix_tokens must be a whole number of at least 0, got -1"),
        ({"alpha": -0.5}, r"alpha must be at least 0, got -0\.5"),
        ({"alpha": float("nan")}, "alpha must be at least 0, got nan"),
        ({"spatial_dims": 4}, "spatial_dims must be one of 1, 2, 3, got 4"),
        ({"projection": "qkv"}, "projection must be one of qg_kv, qkvg, got 'qkv'"),
        ({"branch": "conv"}, "branch must be one of dwc, dcn, none, got 'conv'"),
        ({"value_resize": "cubic"}, "value_resize must be one of sequence, map, got 'cubic'"),
        ({"kernel_size": 4}, "kernel_size must be odd, got 4"),
        ({"kernel_size": -1}, "kernel_size must be a whole number of at least 1, got -1"),
        ({"sr_ratio": 0}, "sr_ratio must be a whole number of at least 1, got 0"),
        ({"sr_ratio": 2, "projection": "qkvg"}, "sr_ratio must be 1 unless spatial_dims is 2"),
        ({"sr_ratio": 2, "spatial_dims": 1}, "sr_ratio must be 1 unless spatial_dims is 2"),
        ({"branch": "dcn", "spatial_dims": 3}, "branch must be 'dwc' or 'none' unless spatial_dims is 2, got 'dcn'"),
        ({"grid_size": (5, 7), "spatial_dims": 1}, "grid_size must have one extent for each of 1 axes"),
        ({"grid_size": 7}, "grid_size must have one extent for each of 2 axes, got 7"),
        ({"grid_size": (5, 0)}, r"grid_size must hold whole numbers of at least 1, got \(5, 0\)"),
    ],
)
def test_wrong_constructor_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        PolaAttention(**({"dim": 12, "num_heads": 3} | arguments))


def test_published_constructor_checks_its_grid():
    with pytest.raises(ValueError, match=r"grid_size must hold num_patches // sr_ratio² = 9 positions, got \(5, 7\)"):
        PolaLinearAttention(12, 36, 3, sr_ratio=2, grid_size=(5, 7))
    with pytest.raises(ValueError, match="num_patches must be at least sr_ratio² = 16, got 9"):
        PolaLinearAttention(12, 9, 3, sr_ratio=4)
    with pytest.raises(ValueError, match="num_patches must be a whole number of at least 1, got 0"):
        PolaLinearAttention(12, 0, 3)
    with pytest.raises(ValueError, match="sr_ratio must be a whole number of at least 1, got 0"):
        PolaLinearAttention(12, 9, 3, sr_ratio=0)
    with pytest.raises(ValueError, match=r"grid_size must hold whole numbers of at least 1, got \(-3, -3\)"):
        PolaLinearAttention(12, 9, 3, grid_size=(-3, -3))


@pytest.mark.parametrize("size", [35, [35], [5, 7, 1]], ids=str)
def test_size_has_one_extent_for_each_axis(size):
    with pytest.raises(ValueError, match="size must be a list of 2 extents, one for each axis, got"):
        PolaAttention(12, 3)(torch.randn(2, 35, 12), size)


def test_tokens_have_the_channels_of_the_layer():
    with pytest.raises(ValueError, match=r"x must have shape \(batch, tokens, 12\), got \[2, 35, 8\]"):
        PolaLinearAttention(12, 35, 3)(torch.randn(2, 35, 8), 5, 7)


class Wrapper(nn.Module):
    """A model as tracers meet it: the grid comes from the input's shape."""

    def __init__(self, **arguments):
        super().__init__()
        self.layer = PolaAttention(12, 3, grid_size=(3, 5), **arguments)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2], x.shape[3]
        return self.layer(x.flatten(2).transpose(1, 2), [height, width])


TRACED = [{}, {"projection": "qkvg"}, {"sr_ratio": 2}, {"sr_ratio": 2, "value_resize": "map"}, {"branch": "dcn"}]


@pytest.mark.parametrize("arguments", TRACED, ids=str)
def test_torchscript(arguments):
    module = randomised(Wrapper(**arguments))
    scripted = torch.jit.script(module)
    for size in ((5, 7), (4, 6)):
        x = tokens(2, 12, *size, dtype=torch.float32)
        torch.testing.assert_close(scripted(x), module(x))


@pytest.mark.parametrize("arguments", TRACED, ids=str)
def test_fx_with_timm_tracer(arguments):
    module = randomised(Wrapper(**arguments))
    traced = create_feature_extractor(module, {"layer.proj_drop": "out"})
    for size in ((5, 7), (4, 6)):
        x = tokens(2, 12, *size, dtype=torch.float32)
        torch.testing.assert_close(traced(x)["out"], module(x))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [TRACED[1], TRACED[3]], ids=str)
def test_compile_fullgraph(arguments):
    module = randomised(Wrapper(**arguments))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in ((5, 7), (9, 13), (11, 17)):
        x = tokens(2, 12, *size, dtype=torch.float32)
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("arguments", [{}, {"sr_ratio": 2}, {"sr_ratio": 2, "value_resize": "map"}], ids=str)
def test_autocast_and_half_precision(arguments, dtype):
    module = randomised(Wrapper(**arguments))
    x = tokens(2, 12, 7, 5, dtype=torch.float32)
    expected = module.double()(x.double())
    scale = expected.abs().max()
    module.float()
    with torch.autocast("cpu", dtype=dtype):
        output = module(x)
    output.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())
    assert ((output.double() - expected).abs().max() / scale) < (3e-2 if dtype is torch.bfloat16 else 5e-3)
    half = module.to(dtype)(x.to(dtype))
    assert half.dtype is dtype
    assert ((half.double() - expected).abs().max() / scale) < (6e-2 if dtype is torch.bfloat16 else 2e-2)


def test_meta_device():
    layer = PolaLinearAttention(24, 36, num_heads=3, sr_ratio=2, device="meta")
    assert layer(torch.empty(2, 35, 24, device="meta"), 5, 7).shape == (2, 35, 24)
