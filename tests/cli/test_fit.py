import copy
from pathlib import Path

import pytest

from polaformer.cli.fit import resolve_recipe
from polaformer.cli.recipes import load_recipe
from polaformer.recipe import Recipe
from polaformer_cli import main
from polaformer_cli.main import parse


def resolve(*arguments: str) -> Recipe:
    return resolve_recipe(parse(["fit", *arguments]))


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["fit", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("polaformer fit: error: ")


def test_no_options__digits() -> None:
    assert resolve() == load_recipe("digits")
    assert resolve("--data", "digits") == load_recipe("digits")


def test_own_data__the_finetune_recipe() -> None:
    expected = load_recipe("finetune")
    expected.data.path = "photos"
    assert resolve("--data", "photos") == expected


def test_every_short_option_reaches_its_key() -> None:
    recipe = resolve(
        *(
            "--config",
            "imagenet/pola_swin_tiny",
            "--data",
            "photos",
            "--model",
            "pola_pvt_nano",
            "--checkpoint",
            "w.pth",
        ),
        *("--epochs", "150", "--batch-size", "7", "--lr", "3e-3", "--precision", "64", "--seed", "11"),
        *("--out", "there", "--name", "first"),
    )
    assert (recipe.data.path, recipe.model.name, recipe.model.checkpoint) == ("photos", "pola_pvt_nano", "w.pth")
    assert (recipe.train.epochs, recipe.data.batch_size, recipe.optim.lr) == (150, 7, 3e-3)
    assert (recipe.train.precision, recipe.train.seed) == ("64", 11)
    assert (recipe.run.dir, recipe.run.name) == ("there", "first")
    assert recipe.optim.clip_grad == 5.0  # the rest is the named recipe's


def test_recipe_keys_win_over_short_options() -> None:
    recipe = resolve("--optim.lr=2e-3", "--lr", "1e-3", "--data.hflip", "0", "--model.args", "{attn_type: LLSS}")
    assert recipe.optim.lr == 2e-3
    assert recipe.data.hflip == 0.0
    assert recipe.model.args == {"attn_type": "LLSS"}


def test_epochs__the_warm_up_keeps_its_share() -> None:
    assert resolve("--config", "imagenet/pola_swin_tiny", "--epochs", "30").optim.warmup_epochs == pytest.approx(2)
    assert resolve("--data", "photos", "--epochs", "1").optim.warmup_epochs == pytest.approx(3 / 40)
    assert resolve("--data", "photos", "--epochs", "5", "--optim.warmup_epochs", "4").optim.warmup_epochs == 4


def test_resume__the_recipe_of_the_run_with_its_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("digits")
    recipe.optim.lr = 7e-3
    monkeypatch.setattr("polaformer.cli.fit.resumed_recipe", {str(tmp_path): recipe}.get)
    recipe = copy.deepcopy(recipe)
    recipe.train.epochs = 17
    assert resolve("--resume", str(tmp_path), "--epochs", "17") == recipe


def test_print_recipe__can_be_trained_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--data", "photos", "--lr", "3e-3", "--model.freeze", "[block1.*]"]
    assert main(["fit", *arguments, "--print-recipe"]) == 0
    path = tmp_path / "mine.yaml"
    path.write_text(capsys.readouterr().out)
    assert resolve("--config", str(path)) == resolve(*arguments)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--lr", "fast"], '--lr must be a float, got "fast"'),
        (["--optim.lr", "fast"], '--optim.lr must be a float, got "fast"'),
        (["--optim.lrr", "1"], "unknown recipe key optim.lrr; did you mean optim.lr?"),
        (["--img-size", "64"], "unknown option --img-size; did you mean --data.img_size?"),
        (["--warmup", "64"], "unknown option --warmup; did you mean --optim.warmup_lr?"),
        (["--qqqqqq", "64"], "unknown option --qqqqqq; --help lists the options"),
        (
            ["--model", "pola_pvt_tyny"],
            "model.name must be a timm model, got pola_pvt_tyny; did you mean pola_pvt_tiny?",
        ),
        (
            ["--config", "digts"],
            "there is no recipe file digts and no shipped recipe of that name; did you mean digits?",
        ),
        (["--resume", "a", "--config", "b"], "--resume goes on by the run's own recipe; leave out --config"),
        (["--resume", "nowhere"], "--resume must be an existing file or folder, got nowhere"),
        (["--data", "qqqqqq"], "--data must be an existing folder, got qqqqqq"),
        (["--data", __file__], f"--data must be an existing folder, got {__file__}, which is a file"),
        (["--resume", "a", "--name", "b"], "--resume goes on in the run's own folder; leave out --name"),
        (["--learning-rate", "1"], "unknown option --learning-rate; did you mean --lr?"),
        (["--optim.opt", "adamww"], "optim.opt must be a timm optimiser, got adamww; did you mean adamw?"),
        (
            ["--train.strategy", "ddp_spawn"],
            '--train.strategy must be one of auto, ddp, got "ddp_spawn"; did you mean ddp?',
        ),
    ],
)
def test_mistake__one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_line(capsys, *arguments) == line


def test_mistake_in_a_file__named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train:\n  epohcs: 3\n")
    expected = f"{path} line 2: unknown recipe key train.epohcs; did you mean train.epochs?"
    assert error_line(capsys, "--config", str(path)) == expected
