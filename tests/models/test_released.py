"""The backbones against the published ones: float64 results, tensor names and shapes, parameter counts."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from polaformer.models import PolaPVT, PolaSwin

DATA = Path(__file__).parents[1] / "data_files"
RELEASED = json.loads((DATA / "released_state_dicts.json").read_text())
RECOMPUTED = ("relative_position_index", "attn_mask")  # buffers that released window checkpoints hold

PARAMETERS = {
    "pola_pvt_tiny": 12_924_648,
    "pola_pvt_small": 23_157_224,
    "pola_pvt_medium": 39_965_672,
    "pola_pvt_large": 54_366_568,
    "pola_swin_tiny": 29_285_696,
    "pola_swin_small": 50_603_600,
    "pola_swin_base": 89_137_864,
    "pola_swin_base_384": 91_599_304,
}


@pytest.mark.parametrize("name", ["pvt_0", "pvt_1", "swin_0", "swin_1"])
def test_float64_output_and_input_gradient(name):
    path = DATA / f"{name}.safetensors"
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    config.pop("patch_size", None)
    values = load_file(path)
    model = (PolaPVT if name.startswith("pvt") else PolaSwin)(**config).double().eval()
    model.load_state_dict({k.partition(".")[2]: v for k, v in values.items() if k.startswith(("param.", "buffer."))})
    x = values["input"].requires_grad_()
    output = model(x)
    output.backward(values["grad_output"])
    torch.testing.assert_close(output, values["output"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(x.grad, values["grad_input"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", list(RELEASED))
def test_tensor_names_and_shapes(name):
    variant, _, reductions = name.partition("_sr")
    arguments = {"la_sr_ratios": reductions} if reductions else {}
    model = timm.create_model(variant, device="meta", **arguments)
    released = {k: s for k, s in RELEASED[name]["state_dict"].items() if not k.endswith(RECOMPUTED)}
    assert {k: list(v.shape) for k, v in model.state_dict().items()} == released


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_parameter_counts(name):
    model = timm.create_model(name, device="meta")
    unused_norm = sum(x.numel() for key, x in model.named_buffers() if key.startswith("norm."))
    assert sum(p.numel() for p in model.parameters()) + unused_norm == PARAMETERS[name]


def test_columnar_parameter_counts_are_the_papers():
    millions = {n: sum(p.numel() for p in timm.create_model(n, device="meta").parameters()) / 1e6 for n in ("pola_deit_tiny", "pola_deit_small")}  # fmt: skip
    assert millions["pola_deit_tiny"] == pytest.approx(6.1, abs=0.1)
    assert millions["pola_deit_small"] == pytest.approx(23.9, abs=0.1)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (224, 448)])
def test_softmax_window_stages_equal_swin(height, width):
    # A roll in the wrong direction, or a missing mask, shows only where windows are shifted over a larger map.
    arguments = {"embed_dim": 12, "depths": (2, 2, 2, 1), "num_heads": (1, 2, 3, 4), "num_classes": 7}
    torch.manual_seed(0)
    swin = timm.models.swin_transformer.SwinTransformer(img_size=(height, width), window_size=7, **arguments)
    swin = swin.double().eval()
    ours = PolaSwin(img_size=(height, width), attn_type="SSSS", **arguments).double().eval()
    with torch.no_grad():
        for parameter in swin.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours.load_state_dict(from_timm_swin(swin.state_dict()))
    x = torch.randn(1, 3, height, width, dtype=torch.float64)
    torch.testing.assert_close(
        ours.forward_features(x), swin.forward_features(x).permute(0, 3, 1, 2), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(ours(x), swin(x), rtol=1e-9, atol=1e-9)


def from_timm_swin(state_dict):
    """timm names the classifier head.fc, merges before a stage instead of after it, and keeps masks as buffers."""
    renamed = {}
    for name, tensor in state_dict.items():
        if name.endswith(RECOMPUTED):
            continue
        parts = name.split(".")
        if parts[0] == "layers" and parts[2] == "downsample":
            parts[1] = str(int(parts[1]) - 1)
        renamed[".".join(parts).replace("head.fc", "head")] = tensor
    return renamed
