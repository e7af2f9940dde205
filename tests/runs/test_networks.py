from dataclasses import replace
from typing import Any

import pytest
import torch

import polaformer.models  # noqa: F401  (registers the backbones)
from polaformer.data.module import ClassificationDataModule
from polaformer.recipe import DataConfig, ModelConfig
from polaformer.runs.networks import build_network, describe_classifier, describe_network, load_classifier


@pytest.fixture(scope="module")
def data() -> ClassificationDataModule:
    module = ClassificationDataModule(DataConfig(path="digits", img_size=48, in_chans=1, crop_pct=0.9), seed=0)
    module.setup("fit")
    return module


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("test_vit", {"img_size": 48}), ("test_convnext", {}), ("pola_pvt_nano", {"img_size": 48})],
)
def test_networks_that_have_an_image_size_get_that_of_the_images(name, arguments, data):
    config = ModelConfig(name=name)
    info = describe_network(config, data)
    assert info.model_args == arguments
    assert (info.img_size, info.in_chans, info.crop_pct, len(info.mean)) == (48, 1, 0.9, 1)
    assert info.class_names == [str(digit) for digit in range(10)]
    with torch.no_grad():
        assert build_network(config, info, initial_weights=True)(torch.zeros(2, 1, 48, 48)).shape == (2, 10)


def test_arguments_of_the_recipe_reach_the_network(data):
    config = ModelConfig(name="test_vit", args={"depth": 3}, drop_path_rate=0.25, grad_checkpointing=True)
    model: Any = build_network(config, describe_network(config, data), initial_weights=True)
    assert len(model.blocks) == 3
    assert model.blocks[2].drop_path1.drop_prob == 0.25
    assert model.grad_checkpointing


def test_arguments_the_network_does_not_take_are_named(data):
    config = ModelConfig(name="test_vit", args={"dept": 3})
    with pytest.raises(ValueError, match=r"model\.args must be arguments of test_vit, got {'dept': 3}"):
        describe_network(config, data)


def test_initial_weights_are_those_of_the_file_unless_a_run_is_resumed(data, tmp_path):
    config = ModelConfig(name="pola_pvt_nano")
    info = describe_network(config, data)
    torch.manual_seed(1)
    source = build_network(config, info, initial_weights=True).state_dict()
    torch.save(source, tmp_path / "start.pth")
    config = replace(config, checkpoint=str(tmp_path / "start.pth"))
    loaded = build_network(config, info, initial_weights=True).state_dict()
    assert all(torch.equal(loaded[name], source[name]) for name in source)
    resumed = build_network(config, info, initial_weights=False).state_dict()
    assert not all(torch.equal(resumed[name], source[name]) for name in source)


def test_what_is_no_weights_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_classifier(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"run folder with best\.safetensors in it"):
        describe_classifier(tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint must be a run folder, or a .* file of one, got w\.pth"):
        describe_classifier("w.pth")
    (tmp_path / "best.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"best\.safetensors"):
        load_classifier(tmp_path)
