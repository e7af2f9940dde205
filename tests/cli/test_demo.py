import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import polaformer.cli.demo
from polaformer.cli.demo import NUM_TILES, choose, make_tile, program, write_held_out
from polaformer.cli.recipes import Setting, load_recipe
from polaformer.data.digits import load_digits_split
from polaformer.data.images import load_image
from polaformer.recipe import Recipe
from polaformer.runs import Prediction
from polaformer_cli import main


def test_write_held_out__the_images_the_model_was_scored_on(tmp_path: Path) -> None:
    paths = write_held_out(tmp_path / "held_out")
    images = load_digits_split().val
    assert len(paths) == len(images) == len(list(tmp_path.rglob("*.png")))
    for index in (0, 101, len(images) - 1):
        assert paths[index].parent.name == str(images.labels[index])
        np.testing.assert_array_equal(load_image(paths[index]), images.load(index, 3))


def test_choose__mistakes_first_then_right_ones_of_all_digits() -> None:
    wrong = [Prediction("held_out/3/0.png", "8", 0.5), Prediction("held_out/7/1.png", "1", 0.6)]
    right = [Prediction(f"held_out/{digit}/{n}.png", str(digit), 0.9) for digit in range(10) for n in range(9)]
    chosen = choose([*right[:40], *wrong, *right[40:]])
    assert chosen[:2] == wrong
    assert len(chosen) == len({each.path for each in chosen}) == NUM_TILES
    assert {each.class_name for each in chosen[2:]} == {str(digit) for digit in range(10)}


def test_choose__nothing_right_and_nothing_wrong() -> None:
    wrong = [Prediction("held_out/3/0.png", "8", 0.5)] * (NUM_TILES + 3)
    assert choose(wrong) == wrong[:NUM_TILES]
    right = [Prediction(f"held_out/3/{number}.png", "3", 0.5) for number in range(7)]
    assert choose(right) == right


def test_make_tile(tmp_path: Path) -> None:
    path = tmp_path / "3" / "0.png"
    path.parent.mkdir()
    Image.new("L", (8, 8), 17).save(path)
    tile = make_tile(Prediction(str(path), "8", 0.5, {"8": 0.5}))
    assert (tile.predicted, tile.true, tile.probability) == ("8", "3", 0.5)
    assert tile.image.getpixel((3, 5)) == 17


@pytest.mark.slow
def test_demo__trains_scores_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short_recipe(name: str, settings: list[Setting]) -> Recipe:
        return load_recipe(name, [*settings, Setting("train.max_steps", "3", "max_steps")])

    monkeypatch.setattr(polaformer.cli.demo, "load_recipe", short_recipe)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--out", "a demo"]) == 0
    out = capsys.readouterr().out
    assert "of 359 held-out digits right" in out or "of 360 held-out digits right" in out
    (run,) = Path("a demo").glob("pola_pvt_nano-digits-*")
    assert f"picture     {run / 'predictions.png'}\n" in out
    assert "polaformer predict 'a demo/held_out/" in out
    with Image.open(run / "predictions.png") as image:
        assert image.width > 1000


def test_program__by_name_where_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "polaformer"
    command.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(command), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "polaformer"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert program() == str(command)
    monkeypatch.setattr(sys, "argv", [__file__, "demo"])  # as in python -m polaformer: no command of its own
    assert program() == "polaformer"
