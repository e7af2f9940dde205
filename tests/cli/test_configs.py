"""The shipped ImageNet recipes against the published numbers, typed here a second time."""

from dataclasses import asdict

import pytest

from polaformer.cli.recipes import CONFIGS, load_recipe, shipped_recipes

#            drop path, published top-1, top-1 of the softmax original
PUBLISHED = {
    "pola_pvt_tiny": (0.1, "78.8", "75.1"),
    "pola_pvt_small": (0.1, "81.9", "79.8"),
    "pola_pvt_medium": (0.3, None, "81.2"),
    "pola_pvt_large": (0.3, None, "81.7"),
    "pola_swin_tiny": (0.2, "82.6", "81.2"),
    "pola_swin_small": (0.3, "83.6", "83.0"),
    "pola_swin_base": (0.5, "83.8", "83.5"),
    "pola_swin_base_384": (0.5, None, None),
    "pola_deit_tiny": (0.1, "74.6", "72.2"),
    "pola_deit_small": (0.1, None, None),
}
#                 warm-up epochs and rate, minimum rate, cool-down epochs
PYRAMID = {"warmup_epochs": 5, "warmup_lr": 1e-6, "min_lr": 1e-5, "cooldown_epochs": 10}
COLUMNAR = {**PYRAMID, "cooldown_epochs": 0}
WINDOW = {"warmup_epochs": 20, "warmup_lr": 5e-7, "min_lr": 5e-6, "cooldown_epochs": 0}
WINDOW_384 = {"warmup_epochs": 5, "warmup_lr": 2e-8, "min_lr": 2e-7, "cooldown_epochs": 0}
CLIP = {"pola_pvt_medium": 1.0, "pola_pvt_large": 1.0, "pola_swin_tiny": 5.0, "pola_swin_small": 5.0}
CLIP |= {"pola_swin_base": 5.0, "pola_swin_base_384": 5.0}


def test_every_published_result_has_its_recipe() -> None:
    assert {name.removeprefix("imagenet/") for name in shipped_recipes() if "/" in name} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers(name: str) -> None:
    recipe = load_recipe(f"imagenet/{name}")
    large = name.endswith("_384")
    model, data, optim, train = map(asdict, (recipe.model, recipe.data, recipe.optim, recipe.train))

    assert model["name"] == name
    assert model["drop_path_rate"] == PUBLISHED[name][0]
    assert model["checkpoint"] is None
    assert not model["pretrained"]

    schedule = WINDOW_384 if large else WINDOW if "swin" in name else COLUMNAR if "deit" in name else PYRAMID
    assert {key: optim[key] for key in schedule} == schedule
    expected_optim = {
        "opt": "adamw",
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "lr": 2e-5 if large else 5e-4,
        "lr_batch": 512,
        "weight_decay": 1e-8 if large else 0.05,
        "sched": "cosine",
        "clip_grad": CLIP.get(name),
        "layer_decay": None,
    }
    assert {key: optim[key] for key in expected_optim} == expected_optim

    expected_data = {
        "img_size": 384 if large else 224,
        "crop_pct": 1.0 if large else 224 / 256,
        "batch_size": 64 if large else 128,
        "interpolation": "bicubic",
        "auto_augment": "rand-m9-mstd0.5-inc1",
        "color_jitter": 0.4,
        "reprob": 0.25,
        "remode": "pixel",
        "hflip": 0.5,
        "scale": (0.08, 1.0),
        "mean": None,
        "std": None,
    }
    assert {key: data[key] for key in expected_data} == expected_data

    expected_train = {
        "epochs": 30 if large else 300,
        "mixup": 0.8,
        "cutmix": 1.0,
        "mixup_switch_prob": 0.5,
        "smoothing": 0.1,
        "ema_decay": None,
        "accumulate": 1,
    }
    assert {key: train[key] for key in expected_train} == expected_train


@pytest.mark.parametrize("name", PUBLISHED)
def test_header_states_command_score_and_hardware(name: str) -> None:
    header = (CONFIGS / "imagenet" / f"{name}.yaml").read_text(encoding="utf-8").partition("\nmodel:")[0]
    _, top1, original = PUBLISHED[name]
    assert f"torchrun --nproc-per-node 8 -m polaformer fit --config imagenet/{name} --data IMAGENET" in header
    total = 512 if name.endswith("_384") else 1024
    assert f"total batch {total} = 8 x {load_recipe(f'imagenet/{name}').data.batch_size}" in header
    if top1 is None:
        assert "Expected top-1: none published" in header
    else:
        assert f"Expected top-1: {top1} % (published, not reproduced here" in header
    assert original is None or f": {original} %)" in header
    assert "used 8 GPUs. Time: not measured." in header
