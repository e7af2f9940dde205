import io
import re
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from helpers.tiny import tiny_recipe, write_images

from polaformer.recipe import TrainConfig
from polaformer.runs import fit
from polaformer.runs.progress import ProgressBar
from polaformer.runs.trainer import build_trainer, quiet_lightning


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def recipe(tmp_path):
    recipe = tiny_recipe(write_images(tmp_path / "images", 7), tmp_path / "runs", epochs=2, ema_decay=None)
    return replace(recipe, run=replace(recipe.run, name="bars"))


@pytest.mark.slow
def test_bar_on_a_terminal_counts_epochs_from_1_at_once_and_on_resume(recipe, caplog):
    caplog.set_level("INFO", "polaformer")
    with redirect_stdout(Terminal()) as terminal:
        result = fit(recipe)
        recipe.train.epochs = 3
        fit(recipe, resume=result.folder)
    shown = re.findall(r"(?:Epoch|Training)[^|]*?(?=:)", terminal.getvalue())
    assert list(dict.fromkeys(shown)) == ["Epoch 1 of 2", "Epoch 2 of 2", "Epoch 3 of 3"]
    assert not any("epoch" in message for message in caplog.messages)


@pytest.mark.slow
def test_a_line_an_epoch_where_there_is_no_terminal(recipe, capsys, caplog):
    caplog.set_level("INFO", "polaformer")
    result = fit(recipe)
    assert capsys.readouterr() == ("", "")
    rows = [line.split(",") for line in (result.folder / "metrics.csv").read_text().splitlines()[1:]]
    assert [line for line in caplog.messages if "epoch" in line] == [
        f"epoch {row[0]} of 2: loss {float(row[3]):.4f}, val_loss {float(row[4]):.4f}, "
        f"val_top1 {float(row[5]):.4f}, {float(row[7]):.1f} s"
        for row in rows
    ]


def test_no_bar_unless_asked_for_and_seen():
    def bars(progress: bool, stream: io.StringIO) -> int:
        with quiet_lightning(), redirect_stdout(stream):
            callbacks = build_trainer(TrainConfig(accelerator="cpu"), progress=progress).callbacks  # pyright: ignore
        return sum(isinstance(callback, ProgressBar) for callback in callbacks)

    assert (bars(True, Terminal()), bars(False, Terminal()), bars(True, io.StringIO())) == (1, 0, 0)
