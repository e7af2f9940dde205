from dataclasses import replace

import pytest

from polaformer.cli.recipes import load_recipe, shipped_recipes
from polaformer.recipe import DataConfig, ModelConfig, OptimConfig, Recipe, TrainConfig
from polaformer.runs.checking import check_recipe


@pytest.mark.parametrize("name", ["digits", "finetune", "imagenet/pola_swin_base_384"])
def test_shipped_recipes_pass(name):
    assert name in shipped_recipes()
    check_recipe(load_recipe(name))


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("model", "drop_path_rate", -0.1, "at least 0 and below 1, got -0.1"),
        ("model", "drop_path_rate", 1.0, "at least 0 and below 1, got 1.0"),
        ("data", "img_size", 1_000_000, "at least 1 and at most 8192, got 1000000"),
        ("data", "batch_size", 0, "at least 1, got 0"),
        ("data", "in_chans", 2, r"1 \(grey\) or 3 \(RGB\), got 2"),
        ("data", "std", [0.5, 0.0, 0.5], r"above 0, got \[0.5, 0.0, 0.5\]"),
        ("data", "crop_pct", 1e-9, "at least 0.1 and at most 1, got 1e-09"),
        ("data", "scale", (0.9, 0.3), "a smaller and a larger number, got 0.9 and 0.3"),
        ("optim", "lr", float("nan"), "above 0, got nan"),
        ("optim", "lr", float("inf"), "above 0, got inf"),
        ("optim", "lr_batch", 0, "at least 1, got 0"),
        ("optim", "layer_decay", 2.0, "above 0 and at most 1, got 2.0"),
        ("optim", "clip_grad", 0.0, "above 0, got 0.0"),
        ("optim", "min_lr", 0.1, "at most optim.lr = 0.0005, got 0.1"),
        ("optim", "opt", "adamww", "a timm optimiser such as adamw, sgd or lamb, got 'adamww'"),
        ("train", "epochs", -1, "at least 1, got -1"),
        ("train", "smoothing", 1.5, "at least 0 and below 1, got 1.5"),
        ("train", "ema_decay", 1.0, "above 0 and below 1, got 1.0"),
        ("train", "devices", "0", "auto, a number of processes, or a list of GPUs such as .*, got '0'"),
        ("train", "devices", "-1", "auto, a number of processes, .*, got '-1'"),
        ("train", "devices", "abc", "auto, a number of processes, .*, got 'abc'"),
        ("train", "devices", "[]", r"auto, a number of processes, .*, got '\[\]'"),
        ("train", "devices", "[1, 1]", r"auto, a number of processes, .*, got '\[1, 1\]'"),
        ("model", "name", "pola_pvt_nanoo", "a timm model, got 'pola_pvt_nanoo'"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(section, key, value, expected):
    recipe = Recipe()
    setattr(getattr(recipe, section), key, value)
    with pytest.raises(ValueError, match=f"{section}.{key} must be {expected}"):
        check_recipe(recipe)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"num_classes": 3}, "must not hold num_classes, which is the number of class folders"),
        ({"img_size": 64}, "must not hold img_size, which is data.img_size"),
        ({"in_chans": 1}, "must not hold in_chans, which is data.in_chans"),
        ({"features_only": True}, "must not hold features_only"),
        ({"no_such": 1}, "must be arguments of pola_pvt_nano, got .*no_such"),
    ],
)
def test_arguments_no_model_takes_are_named(args, expected):
    with pytest.raises(ValueError, match=f"model.args {expected}"):
        check_recipe(Recipe(model=ModelConfig(args=args)))


def test_weights_that_cannot_be_there_are_named(tmp_path):
    with pytest.raises(ValueError, match="must not both be given"):
        check_recipe(Recipe(model=ModelConfig(checkpoint="a.pth", pretrained=True)))
    with pytest.raises(ValueError, match=r"model\.pretrained must be false for pola_pvt_nano"):
        check_recipe(Recipe(model=ModelConfig(pretrained=True)))
    with pytest.raises(ValueError, match=r"model.checkpoint must be null for resnet18, got a\.pth"):
        check_recipe(Recipe(model=ModelConfig(name="resnet18", checkpoint="a.pth")))
    missing = Recipe(model=ModelConfig(checkpoint=str(tmp_path / "none.pth")))
    with pytest.raises(FileNotFoundError, match=r"model.checkpoint must be an existing file, got .*none\.pth"):
        check_recipe(missing)
    check_recipe(missing, initial_weights=False)
    (tmp_path / "gen.py").write_text("import torch")
    with pytest.raises(ValueError, match=r"gen\.py is no PyTorch checkpoint"):
        check_recipe(Recipe(model=ModelConfig(checkpoint=str(tmp_path / "gen.py"))))


def test_a_machine_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    for train, expected in (
        (TrainConfig(accelerator="gpu"), "train.accelerator must be cpu or auto on this machine, got gpu"),
        (TrainConfig(devices="[0]"), "train.devices must be auto or a number of processes without a GPU"),
        (TrainConfig(precision="16"), "train.precision must be 32, 64 or bf16 without a GPU, got 16"),
    ):
        with pytest.raises(ValueError, match=expected):
            check_recipe(replace(Recipe(data=DataConfig(), optim=OptimConfig()), train=train))
