"""The commands for real: ten photographs in, a trained classifier and its predictions out."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image

from polaformer.runs.stopping import StoppingCallback
from polaformer_cli import main


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten JPEGs of two classes in a folder of the working directory."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(7)
    for name, level in (("dark", 60), ("light", 200)):
        folder = Path("photos", name)
        folder.mkdir(parents=True)
        for number in range(5):
            pixels = random.normal(level, 20, (61 + 2 * number, 83, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return Path("photos")


@pytest.mark.slow
def test_folder_of_jpegs__fit_validate_predict(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = ["--data.num_workers", "0"]  # processes would cost more than these ten images
    assert main(["fit", "--data", "photos", "--epochs", "1", "--name", "one", *workers]) == 0
    out, messages = capsys.readouterr()
    assert "run folder  runs/one\n" in out
    assert [line.split() for line in messages.splitlines()[:4]] == [
        ["class", "train", "val"],
        ["0", "dark", "4", "1"],
        ["1", "light", "4", "1"],
        ["all", "8", "2"],
    ]
    assert "%|" not in out  # progress bars are not results

    assert main(["validate", "--checkpoint", "runs/one", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["num_images"] == 2
    assert scores["top1"] in (0.0, 0.5, 1.0)
    assert scores["top5"] == 1.0

    assert main(["predict", "photos/light/3.jpg", "--checkpoint", "runs/one/best.safetensors", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["path"] == "photos/light/3.jpg"
    assert {each["class"] for each in entry["predictions"]} == {"dark", "light"}
    assert sum(each["probability"] for each in entry["predictions"]) == pytest.approx(1)

    assert main(["fit", "--resume", "runs/one", "--epochs", "2", *workers]) == 0
    assert len(Path("runs/one/metrics.csv").read_text().splitlines()) == 1 + 2

    assert main(["fit", "--data", "photos", "--name", "one"]) == 2
    assert "resume it with --resume runs/one, or choose another name" in capsys.readouterr().err


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Have Ctrl-C pressed as training starts, once the run listens for it or just before."""
    start = StoppingCallback.on_train_start

    def arrange(listening: bool) -> None:
        def on_train_start(self: StoppingCallback, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            if not listening:
                raise KeyboardInterrupt
            start(self, trainer, module)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(StoppingCallback, "on_train_start", on_train_start)

    handler = signal.getsignal(signal.SIGINT)
    yield arrange
    signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored


def test_ctrl_c__says_how_to_go_on(
    photos: Path, interrupt: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(True)
    assert main(["fit", "--data", "photos", "--epochs", "500", "--name", "long", "--data.num_workers", "0"]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "polaformer fit: stopped by SIGINT; go on with: polaformer fit --resume runs/long"
    assert Path("runs/long/last.ckpt").is_file()


def test_ctrl_c__before_there_is_anything_to_go_on_from(
    photos: Path, interrupt: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(False)
    assert main(["fit", "--data", "photos", "--name", "short", "--data.num_workers", "0"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "polaformer fit: interrupted"


def test_loss_that_is_not_finite__exit_1(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--lr", "1e30", "--optim.warmup_epochs", "0", "--optim.clip_grad", "null", "--data.num_workers", "0"]
    assert main(["fit", "--data", "photos", "--batch-size", "3", *arguments]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("polaformer fit: stopped: the loss is not finite at step 1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--data", "nowhere"], "--data must be an existing folder, got nowhere"),
        (["--data", "photos", "--checkpoint", "missing.pth"], "missing.pth"),
        (["--data", "photos", "--checkpoint", "weights.pth"], "weights.pth is no PyTorch checkpoint"),
        (["--data", "photos", "--checkpoint", "other.pth"], "other.pth does not fit"),
        (["--data", "photos", "--model.args", "{attn_tipe: LLSS}"], "model.args must be arguments of pola_pvt_nano"),
        (["--data", "photos", "--optim.opt", "adamq"], "adamq"),
        (["--data", "photos", "--batch-size", "0"], "data.batch_size must be at least 1, got 0"),
    ],
)
def test_mistake_found_below__one_line(
    arguments: list[str], problem: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("weights.pth").write_text("import torch")
    torch.save({"head.weight": torch.ones(2, 3)}, "other.pth")
    assert main(["fit", *arguments, "--data.num_workers", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("polaformer fit: error: ")
    assert problem in line
