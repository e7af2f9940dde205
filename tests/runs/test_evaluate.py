import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from helpers.tiny import tiny_recipe, write_images

from polaformer.data.images import load_image
from polaformer.data.transforms import evaluation_transform
from polaformer.models.weights import WeightsInfo, save_weights
from polaformer.runs import evaluate
from polaformer.runs.recipes import write_recipe

ORDER = ["coral", "amber", "blue"]  # not the order of the folders


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """101 images to evaluate on and 19 to train on."""
    root = tmp_path_factory.mktemp("data")
    write_images(root / "val", 33)
    write_images(root / "train", 6, seed=1)
    for number, (role, name) in enumerate([("val", "amber"), ("val", "coral"), ("train", "blue")]):
        extra = write_images(root / "more" / str(number), 1, seed=2 + number) / name / "000.png"
        extra.rename(root / role / name / "extra.png")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(5)
    model = timm.create_model("test_vit", num_classes=3, img_size=32)
    info = WeightsInfo("test_vit", {"img_size": 32}, ORDER, 32, 3, [0.5] * 3, [0.25] * 3, "bilinear", 1.0, "0")
    path = tmp_path_factory.mktemp("run") / "best.safetensors"
    save_weights(path, model, info)
    return path, model.eval()


def count_by_hand(model, root: Path) -> int:
    transform = evaluation_transform(32, 3, [0.5] * 3, [0.25] * 3, "bilinear", 1.0)
    with torch.no_grad():
        return sum(
            int(model(transform(load_image(file))[None]).argmax()) == ORDER.index(file.parent.name)
            for file in root.rglob("*.png")
        )


def test_classes_are_matched_by_name_and_every_image_counts_once(images, weights, caplog):
    path, model = weights
    with caplog.at_level(logging.INFO, "polaformer"):
        scores = evaluate(path, data=images, batch_size=7, progress=False)
    (table,) = caplog.messages
    assert table.splitlines()[1].split() == ["0", "coral", "6", "34"]
    expected = count_by_hand(model, images / "val")
    assert 0 < expected < 101
    assert (scores["num_images"], scores["correct_top1"], scores["correct_top5"]) == (101, expected, 101)
    assert scores["top1"] == pytest.approx(expected / 101)
    assert scores.keys() == {"top1", "top5", "loss", "num_images", "num_classes", "correct_top1", "correct_top5"}


def test_data_comes_from_the_run_folder_unless_given(images, weights, tmp_path):
    with pytest.raises(ValueError, match=r"data must be given: there is no recipe\.yaml beside"):
        evaluate(weights[0], progress=False)
    weights_here = tmp_path / "best.safetensors"
    weights_here.write_bytes(weights[0].read_bytes())
    write_recipe(tmp_path / "recipe.yaml", tiny_recipe(images, tmp_path))
    assert evaluate(tmp_path, progress=False)["num_images"] == 101
    assert evaluate(weights_here, split="test", progress=False)["num_images"] == 101


def test_other_classes_are_an_error(weights, tmp_path):
    write_images(tmp_path / "val", 2, ("amber", "blue", "coral", "dun"))
    with pytest.raises(ValueError, match="dun"):
        evaluate(weights[0], data=tmp_path, progress=False)
    with pytest.raises(ValueError, match="classes are 0 to 9"):
        evaluate(weights[0], data="digits", progress=False)


def test_wrong_arguments_are_named(weights, tmp_path):
    with pytest.raises(ValueError, match="split must be 'validate' or 'test', got 'val'"):
        evaluate(weights[0], split="val")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        evaluate(tmp_path / "none.safetensors", data=tmp_path)


SEVERAL_PROCESSES = """
import json, os, socket, sys
from pathlib import Path
from polaformer.recipe import TrainConfig
from polaformer.runs import evaluate, fit
from polaformer.runs.recipes import read_recipe

weights, images, out = map(Path, sys.argv[1:])


def work(count):
    scores = evaluate(weights, data=images, batch_size=7, machine=TrainConfig(accelerator="cpu"), progress=False)
    if count == 2:
        result = fit(read_recipe(out / "recipe.yaml"), progress=False)
        scores |= {"steps": result.steps, "top1_in_fit": result.best_top1, "folder": str(result.folder)}
    (out / f"{count}-{os.environ['RANK']}.json").write_text(json.dumps(scores))


for count in (2, 3):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(count):  # what torchrun does, without a fresh interpreter for each
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {
                "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": "0",
            }
            work(count)
            sys.exit()
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert codes == [0] * count, codes
"""


@pytest.mark.slow
def test_several_processes_count_like_one(images, weights, tmp_path):
    """Two processes train as well, by DDP's default flags, a network with running statistics and uneven batches."""
    tiny = tiny_recipe(images, tmp_path / "runs", epochs=1, ema_decay=None)
    tiny = replace(tiny, model=replace(tiny.model, name="test_resnet"), data=replace(tiny.data, batch_size=10))
    write_recipe(tmp_path / "recipe.yaml", tiny)
    script = [sys.executable, "-c", SEVERAL_PROCESSES, str(weights[0]), str(images), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    alone = evaluate(weights[0], data=images, batch_size=7, progress=False)
    for count, rank in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2)):
        scores = json.loads((tmp_path / f"{count}-{rank}.json").read_text())
        for key in ("num_images", "correct_top1", "correct_top5", "top1"):
            assert scores[key] == alone[key]
        assert scores["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    trained = json.loads((tmp_path / "2-1.json").read_text())
    assert trained["steps"] == 1  # 19 images are 10 on each process
    again = evaluate(trained["folder"], progress=False)
    assert (again["num_images"], again["top1"]) == (101, pytest.approx(trained["top1_in_fit"]))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"test_resnet-{images.name}-1"]
