import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import polaformer.cli.predict
from polaformer.cli.predict import MOST_TILES
from polaformer.runs import Prediction
from polaformer_cli import main

CAT_OR_DOG = {"cat": 0.75, "dog": 0.25}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three image files; the second cannot be read by the engine that stands in here."""
    paths = [str(tmp_path / name) for name in ("z, the first.png", "broken.png", "a.png")]
    for path in paths:
        Image.new("RGB", (31, 43), "orange").save(path)

    def predict_images(checkpoint: str, images: list[str], *, top_k: int, batch_size: int) -> Iterator[Prediction]:
        assert (checkpoint, batch_size) == ("run", 32)
        for path in images:
            if "broken" in path:
                yield Prediction(path, error="is empty (0 bytes)")
            else:
                yield Prediction(path, "cat", 0.75, dict(list(CAT_OR_DOG.items())[:top_k]))

    monkeypatch.setattr(polaformer.cli.predict, "predict_images", predict_images)
    return paths


def test_table__in_the_order_given(photos: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, _, last = photos
    assert main(["predict", first, last, "--checkpoint", "run"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{first}\n   75.0%  cat\n   25.0%  dog\n{last}\n   75.0%  cat\n   25.0%  dog\n"
    assert captured.err == ""


def test_bad_file__named_on_stderr_and_exit_1(photos: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *photos, "--checkpoint", "run", "--top", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{photos[0]}\n   75.0%  cat\n{photos[2]}\n   75.0%  cat\n"
    assert captured.err == f"polaformer predict: warning: {photos[1]}: is empty (0 bytes)\n"


def test_csv(photos: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", photos[0], "--checkpoint", "run", "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert rows == [
        {"path": photos[0], "rank": "1", "class": "cat", "probability": "0.750000"},
        {"path": photos[0], "rank": "2", "class": "dog", "probability": "0.250000"},
    ]


def test_json(photos: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *photos[:2], "--checkpoint", "run", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {
            "path": photos[0],
            "predictions": [{"class": "cat", "probability": 0.75}, {"class": "dog", "probability": 0.25}],
        },
        {"path": photos[1], "error": "is empty (0 bytes)"},
    ]


def test_output_and_picture(photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, picture = tmp_path / "seen.csv", tmp_path / "seen.png"
    arguments = ["--checkpoint", "run", "--csv", "--output", str(output), "--picture", str(picture)]
    assert main(["predict", photos[0], *arguments]) == 0
    assert capsys.readouterr().out == ""
    assert output.read_text().startswith("path,rank,class,probability\n")
    with Image.open(picture) as image:
        assert image.format == "PNG"


def test_picture__shows_the_first_of_many(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: dict[str, object] = {}
    monkeypatch.setattr(
        polaformer.cli.predict, "draw_tiles", lambda path, tiles, title: drawn.update(count=len(tiles), title=title)
    )
    many = [photos[0]] * (MOST_TILES + 3)
    assert main(["predict", *many, "--checkpoint", "run", "--picture", str(tmp_path / "seen.png")]) == 0
    assert drawn == {"count": MOST_TILES, "title": f"Most probable class (the first {MOST_TILES} of {MOST_TILES + 3})"}


def test_picture__of_nothing(photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = str(tmp_path / "seen.png")
    assert main(["predict", photos[1], "--checkpoint", "run", "--picture", picture]) == 2
    assert "--picture must have an image to draw, but none could be read" in capsys.readouterr().err


def test_no_such_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "best.safetensors")
    assert main(["predict", "a.jpg", "--checkpoint", missing]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("polaformer predict: error: ")
    assert missing in line


@pytest.mark.parametrize("form", [[], ["--csv"], ["--json"]])
def test_names_of_any_bytes__printed_as_text(
    photos: list[str], form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [f"{tmp_path}/\udcff\x1b.png", f"{tmp_path}/\udcff broken.png"]
    assert main(["predict", *odd, "--checkpoint", "run", *form]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"polaformer predict: warning: {tmp_path}/\\udcff broken.png: is empty (0 bytes)\n"
    if form == ["--json"]:
        assert [entry["path"] for entry in json.loads(captured.out)] == odd
    else:
        assert f"{tmp_path}/\\udcff\\x1b.png" in captured.out


@pytest.mark.parametrize("option", ["--output", "--picture"])
@pytest.mark.parametrize("place", ["", ".", "none/seen.out", "file/seen.out", "pipe"])
def test_place_that_cannot_be_written_to__told_first(
    option: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    assert main(["predict", "a.jpg", "--checkpoint", "none", option, place]) == 2
    assert capsys.readouterr().err == (
        f"polaformer predict: error: {option} must be a file in an existing folder that can be written to, "
        f"got {place!r}\n"
    )
