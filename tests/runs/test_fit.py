import csv
import itertools
import json
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import CLASSES, Recorder, tiny_recipe, write_images
from PIL import Image

from polaformer.data.datasets import TrainDataset
from polaformer.models.weights import load_weights
from polaformer.recipe import RunConfig
from polaformer.runs import NonFiniteError, RunResult, fit
from polaformer.runs.folder import RunFolder
from polaformer.runs.history import COLUMNS
from polaformer.runs.networks import load_classifier
from polaformer.runs.recipes import read_recipe

# 27 images a class, three tenths held out: 57 to train on, 9 batches of 7 an epoch, the last of 1.
BATCHES = 9


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images", 27)


@pytest.fixture(scope="module")
def straight(images, tmp_path_factory) -> tuple[RunResult, list[float]]:
    """Twenty steps without a break, with everything random switched on."""
    recorder = Recorder()
    runs = tmp_path_factory.mktemp("runs")
    result = fit(tiny_recipe(images, runs, max_steps=20), callbacks=[recorder], progress=False)
    return result, recorder.losses


def read_plain(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True)


def differences(first: Any, second: Any, at: str = "") -> list[str]:
    """Where two nests of plain values and tensors are not exactly equal; times aside."""
    if isinstance(first, dict):
        assert first.keys() == second.keys(), at
        return [d for key in first if key != "seconds" for d in differences(first[key], second[key], f"{at}.{key}")]
    if isinstance(first, (list, tuple)):
        assert len(first) == len(second), at
        return [d for i, (a, b) in enumerate(zip(first, second)) for d in differences(a, b, f"{at}[{i}]")]
    equal = torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second
    return [] if equal else [at]


@pytest.mark.slow
def test_a_run_broken_within_and_between_epochs_equals_the_straight_one_bit_for_bit(images, straight, tmp_path):
    whole, expected = straight
    losses: list[float] = []

    def session(interrupt: tuple[int, int] | None = None, resume: Path | None = None, **train: Any) -> RunResult:
        at, number = interrupt or (None, 0)
        recorder = Recorder(at, lambda: os.kill(os.getpid(), number))
        recipe = tiny_recipe(images, tmp_path, **train)
        result = fit(recipe, resume=resume, callbacks=[recorder], progress=False)
        losses.extend(recorder.losses)
        return result

    first = session((5, signal.SIGTERM), max_steps=20)
    assert (first.finished, first.interrupted_by, first.steps, first.best_top1) == (False, "SIGTERM", 5, None)
    assert first.resume_command == f"polaformer fit --resume {first.folder}"
    second = session((BATCHES, signal.SIGINT), first.folder, max_steps=20)
    assert (second.interrupted_by, second.steps) == ("SIGINT", BATCHES)
    third = session(None, first.folder, max_steps=11)
    assert (third.finished, third.steps) == (True, 11)
    fourth = session(None, first.folder / "last.ckpt", max_steps=20)

    assert losses == expected
    assert (fourth.best_top1, fourth.best_epoch, fourth.steps) == (whole.best_top1, whole.best_epoch, 20)
    once, often = read_plain(whole.folder / "last.ckpt"), read_plain(fourth.folder / "last.ckpt")
    keys = ("state_dict", "current_model_state", "averaging_state", "optimizer_states", "lr_schedulers")
    for key in (*keys, "ClassificationDataModule"):
        assert differences(once[key], often[key], key) == []
    rows, broken_rows = (read_rows(run.folder / "metrics.csv") for run in (whole, fourth))
    for row in (*rows, *broken_rows):
        del row["seconds"], row["data_wait"]
    assert rows == broken_rows


def read_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_the_recipe_in_the_run_folder_gives_the_same_losses_again(straight, tmp_path):
    result, losses = straight
    recipe = replace(read_recipe(result.folder / "recipe.yaml"), run=RunConfig(dir=str(tmp_path)))
    recorder = Recorder()
    fit(recipe, callbacks=[recorder], progress=False)
    assert recorder.losses == losses


@pytest.mark.slow
def test_what_a_run_folder_holds(straight, images):
    result, _ = straight
    folder = result.folder
    assert folder.name == "test_vit-images-1"
    assert {path.name for path in folder.iterdir()} == {
        "best.ckpt", "best.safetensors", "classes.txt", "curves.png", "last.ckpt", "last.safetensors", "metrics.csv",
        "recipe.yaml", "versions.json", ".lock",
    }  # fmt: skip
    rows = read_rows(folder / "metrics.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "9"), ("2", "18"), ("3", "20")]
    assert max(float(row["val_top1"]) for row in rows) == result.best_top1
    with Image.open(folder / "curves.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(2**20) or ()) > 20
    recipe = read_recipe(folder / "recipe.yaml")
    assert len(recipe.data.mean or ()) == 3
    assert recipe.data.path == str(images)
    origin = json.loads((folder / "versions.json").read_text())
    assert origin["seed"] == 0
    assert torch.__version__.startswith(origin["packages"]["torch"])
    assert (folder / "classes.txt").read_text() == "".join(f"{name}\n" for name in CLASSES)


@pytest.mark.slow
def test_weights_are_the_average_that_was_scored_and_say_what_they_are(straight):
    result, _ = straight
    for name in ("last", "best"):
        model, info = load_weights(result.folder / f"{name}.safetensors")
        assert info.class_names == list(CLASSES)
        assert (info.img_size, info.in_chans) == (32, 3)
        from_checkpoint, same_info = load_classifier(result.folder / f"{name}.ckpt")
        assert same_info == info
        assert differences(model.state_dict(), from_checkpoint.state_dict()) == []
    checkpoint = read_plain(result.folder / "last.ckpt")
    assert differences(checkpoint["state_dict"], checkpoint["current_model_state"]) != []


@pytest.mark.slow
def test_a_run_that_cannot_go_on_says_why_and_nothing_else(straight, images, caplog):
    result, _ = straight
    caplog.set_level(logging.INFO, "polaformer")

    def resume(**changes: dict[str, Any]) -> None:
        recipe = tiny_recipe(images, result.folder.parent, max_steps=20)
        for section, keys in changes.items():
            recipe = replace(recipe, **{section: replace(getattr(recipe, section), **keys)})
        fit(recipe, resume=result.folder, progress=False)

    with pytest.raises(
        ValueError, match=r"train\.max_steps must be above 20 to go on, got 20: the run has done 20 updates"
    ):
        resume()
    with pytest.raises(ValueError, match=r"must keep optim\.lr = 0\.002, got 0\.1; only train\.epochs"):
        resume(optim={"lr": 0.1}, train={"max_steps": 25})
    with pytest.raises(ValueError, match=r"train\.epochs must be above 2 to go on, got 1: the run has done 2 epochs$"):
        resume(train={"epochs": 1, "max_steps": 25})
    with pytest.raises(ValueError, match="images it started with: 57 to train on in 3 classes, got"):
        resume(data={"path": "digits"}, train={"max_steps": 25})
    elsewhere = read_plain(result.folder / "last.ckpt")
    elsewhere["polaformer"]["world_size"] = 3
    torch.save(elsewhere, images.parent / "elsewhere.ckpt")
    with pytest.raises(ValueError, match="must use as many processes as before, 3, got 1"):
        fit(tiny_recipe(images, images.parent, max_steps=25), resume=images.parent / "elsewhere.ckpt", progress=False)
    with pytest.raises(ValueError, match=r"run\.name must be new"):
        fit(
            replace(
                read_recipe(result.folder / "recipe.yaml"),
                run=RunConfig(str(result.folder.parent), "test_vit-images-1"),
            )
        )
    assert caplog.text == ""


@pytest.mark.slow
def test_a_signal_that_takes_the_loader_processes_along_is_survived(images, straight, tmp_path, monkeypatch):
    load = TrainDataset.__getitem__
    calls = itertools.count()

    def die(self: TrainDataset, key: int) -> Any:
        if next(calls) == 5 * 7 + 2:  # while the sixth batch is read
            os.kill(os.getpid(), signal.SIGTERM)
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated.")
        return load(self, key)

    monkeypatch.setattr(TrainDataset, "__getitem__", die)
    recorder = Recorder()
    result = fit(tiny_recipe(images, tmp_path, max_steps=8), callbacks=[recorder], progress=False)
    assert (result.interrupted_by, result.steps) == ("SIGTERM", 5)
    fit(resume=result.folder, callbacks=[recorder], progress=False)
    assert recorder.losses == straight[1][:8]


def test_nothing_to_resume_is_an_error_before_anything_else(tmp_path):
    with pytest.raises(ValueError, match=r"resume must be a run folder with last\.ckpt in it"):
        fit(resume=tmp_path)
    with pytest.raises(ValueError, match="recipe must be given"):
        fit()


@pytest.mark.slow
def test_a_weight_that_overflows_stops_the_run_and_is_named(images, tmp_path):
    class Breaker(Recorder):
        def on_train_batch_start(self, trainer, pl_module: Any, batch, batch_idx) -> None:
            if trainer.global_step == 3:
                with torch.no_grad():
                    pl_module.model.blocks[2].mlp.fc1.weight[5, 7] = float("inf")

    recipe = tiny_recipe(images, tmp_path, checkpoint_every=2, max_steps=6)
    with pytest.raises(
        NonFiniteError, match=r"loss is not finite at step 3: .*blocks\.2\.mlp\.fc1.*\(epoch 0, batch 3\)"
    ) as error:
        fit(recipe, callbacks=[Breaker()], progress=False)
    assert (error.value.step, error.value.module, error.value.what) == (3, "blocks.2.mlp.fc1", "loss")
    kept = read_plain(RunFolder(tmp_path / "test_vit-images-1").last)
    assert kept["polaformer"]["updates"] == 2
    assert all(torch.isfinite(value).all() for value in kept["current_model_state"].values())


@pytest.mark.slow
def test_frozen_parameters_stay_and_batches_accumulate(images, tmp_path):
    class Start(Recorder):
        def on_train_start(self, trainer, pl_module) -> None:
            self.weights = {name: value.clone() for name, value in pl_module.model.state_dict().items()}

    recipe = tiny_recipe(images, tmp_path, epochs=1, ema_decay=None, mixup=0.0, cutmix=0.0, accumulate=4)
    recipe = replace(recipe, model=replace(recipe.model, freeze=["blocks.0.*", "patch_embed*"]))
    start = Start()
    result = fit(recipe, callbacks=[start], progress=False)
    assert result.steps == 3  # 9 batches: 4, 4 and 1
    end = load_weights(result.best_weights)[0].state_dict()
    for name, value in start.weights.items():
        assert torch.equal(end[name], value) == name.startswith(("blocks.0.", "patch_embed")), name


@pytest.mark.slow
def test_warm_up_is_resolved_once_and_kept_on_resume(images, tmp_path):
    recipe = tiny_recipe(images, tmp_path, epochs=1, ema_decay=None)
    recipe = replace(recipe, optim=replace(recipe.optim, warmup_epochs=None))
    result = fit(recipe, progress=False)  # without a warning, which would be an error here
    assert read_recipe(result.folder / "recipe.yaml").optim.warmup_epochs == pytest.approx(1 / 6)
    fit(replace(recipe, train=replace(recipe.train, epochs=2)), resume=result.folder, progress=False)
    assert read_recipe(result.folder / "recipe.yaml").optim.warmup_epochs == pytest.approx(1 / 6)


def test_settings_without_effect_are_warned_of_at_the_line_of_the_caller(tmp_path):
    recipe = tiny_recipe(tmp_path / "none", tmp_path, epochs=2)
    recipe = replace(recipe, optim=replace(recipe.optim, warmup_epochs=2.0))
    with pytest.warns(UserWarning, match="never leaves the warm-up") as caught, pytest.raises(ValueError, match="none"):
        fit(recipe, progress=False)
    assert [warning.filename for warning in caught] == [__file__]
