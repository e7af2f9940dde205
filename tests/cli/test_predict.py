import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import polaformer.cli.predict
from polaformer.cli.picture import Tile
from polaformer.cli.predict import MOST_TILES, run
from polaformer.runs import Prediction
from polaformer_cli import main
from polaformer_cli.main import parse

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

    def seen_pictures(checkpoint: str, images: list[str]) -> Iterator[Image.Image]:
        assert checkpoint == "run"
        for number in range(len(images)):
            yield Image.new("RGB", (29, 29), (0, 0, number))

    monkeypatch.setattr(polaformer.cli.predict, "predict_images", predict_images)
    monkeypatch.setattr(polaformer.cli.predict, "seen_pictures", seen_pictures)
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


def test_picture__what_the_model_saw_of_files_that_could_be_read(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Tile] = []
    monkeypatch.setattr(polaformer.cli.predict, "draw_tiles", lambda path, tiles, title: drawn.extend(tiles))
    assert main(["predict", *photos, "--checkpoint", "run", "--picture", str(tmp_path / "seen.PNG")]) == 1
    assert [(tile.image.size, tile.image.getpixel((3, 5)), tile.predicted) for tile in drawn] == [
        ((29, 29), (0, 0, 0), "cat"),
        ((29, 29), (0, 0, 1), "cat"),
    ]


def test_picture__of_nothing_is_not_drawn_but_all_else_is_told(
    photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "seen.png"
    assert main(["predict", photos[1], "--checkpoint", "run", "--json", "--picture", str(picture)]) == 1
    captured = capsys.readouterr()
    assert "warning: --picture has nothing to draw: no image could be read\n" in captured.err
    assert json.loads(captured.out) == [{"path": photos[1], "error": "is empty (0 bytes)"}]
    assert not picture.exists()


def test_picture__written_whatever_becomes_of_the_text(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(polaformer.cli.predict, "say", leave)
    with pytest.raises(BrokenPipeError):
        run(parse(["predict", photos[0], "--checkpoint", "run", "--picture", str(tmp_path / "seen.png")]))
    assert (tmp_path / "seen.png").is_file()


@pytest.mark.parametrize("name", ["seen.docx", "seen", "seen.png.jpg"])
def test_picture__must_end_in_png(
    name: str, photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(tmp_path / name)
    assert main(["predict", photos[0], "--checkpoint", "none", "--picture", picture]) == 2
    assert capsys.readouterr().err == (
        f"polaformer predict: error: --picture must be a file name ending in .png, got {picture!r}\n"
    )


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
