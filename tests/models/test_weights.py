"""The weights file that knows its model, classes and preprocessing."""

import json
from dataclasses import asdict, replace

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from polaformer import WeightsInfo, load_checkpoint, load_weights, save_weights

INFO = WeightsInfo(
    model_name="pola_pvt_nano",
    model_args={"depths": [1, 2, 1, 1], "attn_type": "LLLS", "img_size": 64},
    class_names=["ant", "bee", "wasp"],
    img_size=64,
    in_chans=1,
    mean=[0.43],
    std=[0.21],
    interpolation="bicubic",
    crop_pct=0.9,
    version="0.1.0",
)


@pytest.fixture
def model():
    torch.manual_seed(3)
    return timm.create_model(
        "pola_pvt_nano", num_classes=3, in_chans=1, depths=[1, 2, 1, 1], attn_type="LLLS", img_size=64
    )


def test_round_trip(model, tmp_path):
    save_weights(tmp_path / "best.safetensors", model, INFO)
    loaded, info = load_weights(tmp_path / "best.safetensors")
    assert info == INFO
    assert not loaded.training
    x = torch.randn(2, 1, 64, 64)
    assert torch.equal(loaded(x), model.eval()(x))


def test_file_is_ordinary_safetensors_and_an_ordinary_checkpoint(model, tmp_path):
    path = tmp_path / "best.safetensors"
    save_weights(path, model, INFO)
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == sorted(model.state_dict())
    report = load_checkpoint(timm.create_model("pola_pvt_nano", in_chans=1, num_classes=5, **INFO.model_args), path)
    assert report.rebuilt == ["head.weight", "head.bias"]


def test_channels_last_weights_can_be_saved(model, tmp_path):
    save_weights(tmp_path / "a.safetensors", model.to(memory_format=torch.channels_last), INFO)
    loaded, _ = load_weights(tmp_path / "a.safetensors")
    weight = "patch_embed1.proj.weight"
    assert torch.equal(loaded.state_dict()[weight], model.state_dict()[weight])


def test_arguments_that_json_cannot_hold(model, tmp_path):
    with pytest.raises(ValueError, match=r"info\.model_args must hold JSON values only"):
        save_weights(tmp_path / "a.safetensors", model, replace(INFO, model_args={"dtype": torch.float32}))
    assert not list(tmp_path.iterdir())


def test_file_of_somebody_else(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="does not say which model it holds"):
        load_weights(tmp_path / "a.safetensors")


def test_damaged_file(model, tmp_path):
    path = tmp_path / "best.safetensors"
    save_weights(path, model, INFO)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is no safetensors file, or damaged"):
        load_weights(path)
    with pytest.raises(FileNotFoundError, match="no weights file at"):
        load_weights(tmp_path / "nowhere.safetensors")


def altered(**changes):
    return json.dumps(asdict(INFO) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "describes its model in what is no JSON"),
        ("[1, 2]", "does not say the model_name of its model"),
        (json.dumps({"model_name": "pola_pvt_nano"}), "does not say the model_args of its model"),
        (altered(class_names=3), "must hold class_names as list, got 3"),
        (altered(crop_pct="0.9"), "must hold crop_pct as float, got '0.9'"),
        (altered(model_name="resnet_of_mine"), "names a model that is not registered with timm: 'resnet_of_mine'"),
        (altered(model_name="hf-hub:someone/something"), "names a model that is not registered with timm"),
        (altered(model_args={"depth": 3}), "names a model that cannot be built, pola_pvt_nano of .*'depth': 3"),
        (altered(model_args={}), "holds other weights than those of pola_pvt_nano, which it names: .*Missing key"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_with_its_name(model, tmp_path, text, message):
    path = tmp_path / "odd.safetensors"
    save_file(model.state_dict(), path, {"polaformer": text})
    with pytest.raises(ValueError, match=rf"odd\.safetensors {message}") as refusal:
        load_weights(path)
    assert "\n" not in str(refusal.value)
