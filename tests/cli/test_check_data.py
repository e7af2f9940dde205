import json
from pathlib import Path

import pytest
from PIL import Image

from polaformer_cli import main


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, color in (("cat", "orange"), ("dog", "brown")):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (41 + number, 37), color).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_good_folder__exit_0(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-data", str(photos)]) == 0
    report = capsys.readouterr().out
    assert "cat" in report
    assert "0 errors" in report


def test_bad_file__named_and_exit_1(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "dog" / "empty.jpg").touch()
    assert main(["check-data", str(photos)]) == 1
    assert f"error: {photos / 'dog' / 'empty.jpg'}: is empty (0 bytes)" in capsys.readouterr().out


def test_json(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "dog" / "empty.jpg").touch()
    assert main(["check-data", str(photos), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert report["class_names"] == ["cat", "dog"]
    assert sum(report["num_images"].values()) == 7
    assert report["problems"][0] == {
        "path": str(photos / "dog" / "empty.jpg"),
        "reason": "is empty (0 bytes)",
        "severity": "error",
    }


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("dogs", "dogs; did you mean dog?"),
        ("dog/0.png", "dog/0.png, which is a file"),
        ("dog/link", "dog/link, which is a link that leads nowhere"),
    ],
)
def test_no_folder__a_mistake_in_the_command_line(
    name: str, problem: str, form: list[str], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "dog" / "link").symlink_to(photos / "nowhere")
    assert main(["check-data", str(photos / name), *form]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"polaformer check-data: error: PATH must be an existing folder, got {photos}/{problem}\n"
