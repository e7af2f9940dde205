import os
import shutil

import numpy as np
import pytest
from helpers.images import encode, noise, write_bad_files, write_tree
from PIL import Image

from polaformer.data.check import Problem, check_data


def _by_name(report) -> dict[str, tuple[str, str]]:
    return {problem.path.rsplit("/", 1)[1]: (problem.severity, problem.reason) for problem in report.problems}


def test_clean_folder(tmp_path):
    report = check_data(write_tree(tmp_path, {"cat": 5, "dog": 5}))
    assert (report.ok, report.problems) == (True, [])
    lines = [line.split() for line in report.render().splitlines()]
    assert lines == [
        [str(tmp_path)],
        ["class", "train", "val"],
        ["0", "cat", "4", "1"],
        ["1", "dog", "4", "1"],
        ["all", "8", "2"],
        [],
        ["0", "errors,", "0", "warnings"],
    ]


def test_bad_files_come_first_and_are_errors(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    write_bad_files(tmp_path / "dog")
    noise(31, 40, 77).save(tmp_path / "cat" / "small.png")
    report = check_data(tmp_path)
    assert not report.ok
    assert [problem.severity for problem in report.problems] == ["error"] * 3 + ["warning"]
    found = _by_name(report)
    assert found["bad_empty.jpg"] == ("error", "is empty (0 bytes)")
    assert found["bad_text.jpg"][1] == "is no image in a known format"
    assert found["bad_truncated.jpg"][1] == "is cut short: the file ends within the image"
    assert found["small.png"] == ("warning", "is small (31x40 pixels, under 32)")
    text = report.render(most=2).splitlines()
    assert text[-2:] == ["... and 2 more", "3 errors, 1 warning"]
    assert f"error: {tmp_path}/dog/bad_empty.jpg: is empty (0 bytes)" in report.render()


def test_unusual_but_sound_files_are_no_problems(tmp_path):
    write_tree(tmp_path, {"cat": 4, "dog": 4})
    ramp = np.linspace(0, 65535, 37 * 41, dtype=np.uint16).reshape(41, 37)
    (tmp_path / "cat" / "ramp.png").write_bytes(encode(Image.fromarray(ramp), "PNG"))
    (tmp_path / "cat" / "cmyk.jpg").write_bytes(encode(noise(37, 41, 90).convert("CMYK"), "JPEG"))
    assert check_data(tmp_path).problems == []


def test_strips_other_endings_empty_folders_and_stray_images(tmp_path):
    write_tree(tmp_path, {"cat": 4, "dog": 4, "yak": 0, ".": 1})
    noise(32 * 21, 32, 91).save(tmp_path / "cat" / "strip.png")
    for name in ("cat/labels.txt", "cat/readme", "dog/a.HEIC", "dog/b.heic", "dog/c.dng", "cat/labels/2.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    report = check_data(tmp_path)
    assert report.ok
    assert [problem.reason for problem in report.problems] == [
        f"{tmp_path}: class folders without images are left out: 'yak'",
        f"left out 1 image beside the class folders: {tmp_path}/000.png",
        f"1 file ending in .dng passed over: {tmp_path}/dog/c.dng; convert to JPEG or PNG",
        f"2 files ending in .heic passed over, such as {tmp_path}/dog/a.HEIC; convert to JPEG or PNG",
        f"2 files ending in .txt passed over, such as {tmp_path}/cat/labels/2.txt",
        f"1 file without ending passed over: {tmp_path}/cat/readme",
        "is a strip (672x32 pixels), of which a square shows little",
    ]


def test_equal_files_in_two_sets_or_two_classes(tmp_path):
    write_tree(tmp_path, {"train/cat": 3, "train/dog": 3, "val/cat": 1, "val/dog": 1}, first_seed=200)
    write_tree(tmp_path, {"val/cat": 2}, first_seed=300)
    for source, target in (
        ("train/cat/000.png", "val/cat/leak.png"),
        ("train/dog/001.png", "train/cat/contradiction.png"),
        ("train/dog/002.png", "train/dog/twice.png"),  # of no consequence
    ):
        shutil.copy(tmp_path / source, tmp_path / target)
    found = _by_name(check_data(tmp_path))
    assert found["leak.png"] == ("warning", f"equals {tmp_path}/train/cat/000.png, in both the train and the val set")
    assert "in another class" in next(reason for _, reason in found.values() if "another" in reason)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({".": 3}, "holds 3 images but no class folders"),
        ({"train/cat": 1, "train/dog": 1, "val/yak": 1}, "val holds images of 'yak', which the training folder lacks"),
    ],
)
def test_unusable_folder_is_one_error(tmp_path, counts, message):
    report = check_data(write_tree(tmp_path, counts))
    assert report.split is None
    assert report.problems == [Problem(str(tmp_path), report.problems[0].reason, "error")]
    assert message in report.problems[0].reason
    assert report.render().splitlines()[-1] == "1 error, 0 warnings"


def test_pipes_and_broken_links_are_bad_files(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    os.symlink(tmp_path / "dog" / "self.png", tmp_path / "dog" / "self.png")
    assert _by_name(check_data(tmp_path)) == {
        "pipe.png": ("error", "is no regular file"),
        "self.png": ("error", "is a link that leads to no file"),
    }


def test_names_of_any_bytes_are_shown_escaped(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    (tmp_path / "cat" / "\udcff\x1b[2J\nerror.png").touch()
    assert r"error: " + str(tmp_path / "cat") + r"/\udcff\x1b[2J\nerror.png: is empty" in check_data(tmp_path).render()


def test_nothing_held_out_is_an_error(tmp_path):
    report = check_data(write_tree(tmp_path, {"cat": 1, "dog": 1}))
    assert not report.ok
    assert report.render().splitlines()[-2:] == [
        "error: must hold images to evaluate on, got none held out: each class has one",
        "1 error, 0 warnings",
    ]


def test_digits_are_the_built_in_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check_data("digits")
    assert report.split is not None
    assert (report.problems, len(report.split.train) + len(report.split.val)) == ([], 1797)
    (tmp_path / "digits").mkdir()
    (warning,) = check_data("digits").problems
    assert warning.reason == "digits means the built-in data set; the folder of that name is ./digits"
