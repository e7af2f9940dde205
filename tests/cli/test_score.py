import json
from pathlib import Path

import pytest

import polaformer.cli.score
from polaformer_cli import main

SCORES = {
    "top1": 0.875,
    "top5": 1.0,
    "loss": 0.51239,
    "num_images": 104,
    "num_classes": 7,
    "correct_top1": 91,
    "correct_top5": 104,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the engine was asked to score."""
    asked: dict[str, object] = {}

    def evaluate(checkpoint: str, **options: object) -> dict[str, float]:
        asked.update(checkpoint=checkpoint, **options)
        return SCORES

    monkeypatch.setattr(polaformer.cli.score, "evaluate", evaluate)
    return asked


def test_validate__table(asked: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--checkpoint", "run"]) == 0
    assert capsys.readouterr().out == ("top-1    87.50%  (91 of 104 images)\ntop-5   100.00%\nloss     0.5124\n")
    assert asked == {"checkpoint": "run", "split": "validate", "data": None, "batch_size": None}


def test_test__json(asked: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--checkpoint", "run", "--data", str(tmp_path), "--batch-size", "7", "--json"]
    assert main(["test", *arguments]) == 0
    assert json.loads(capsys.readouterr().out) == SCORES
    assert asked == {"checkpoint": "run", "split": "test", "data": str(tmp_path), "batch_size": 7}


def test_no_such_data__one_line(asked: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--checkpoint", "run", "--data", "qqqqqq"]) == 2
    assert capsys.readouterr().err == "polaformer validate: error: --data must be an existing folder, got qqqqqq\n"
    assert asked == {}
