import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.images import encode, noise, write_tree

from polaformer.data.folders import ImageList, read_folder, scan_folder


def _names(images) -> list[str]:
    return list(images.names)


def _labels_by_name(images) -> dict[str, int]:
    return dict(zip(images.names, images.labels.tolist()))


def test_one_tree_is_split_by_names_alone(tmp_path):
    first = scan_folder(write_tree(tmp_path / "a" / "pets", {"dog": 11, "cat": 7}), 0.3, 5)
    # Written in another order, elsewhere.
    shutil.copytree(tmp_path / "a" / "pets" / "cat", tmp_path / "other" / "cat")
    shutil.copytree(tmp_path / "a" / "pets" / "dog", tmp_path / "other" / "dog")
    second = scan_folder(tmp_path / "other", 0.3, 5)
    assert first.class_names == ["cat", "dog"]
    assert (len(first.train), len(first.val)) == (13, 5)
    assert np.bincount(first.val.labels).tolist() == [2, 3]
    assert _names(first.val) == _names(second.val)
    assert _names(first.train) == _names(second.train)
    assert not set(_names(first.train)) & set(_names(first.val))
    assert _names(scan_folder(tmp_path / "other", 0.3, 6).val) != _names(first.val)


@pytest.mark.parametrize("held", ["val", "valid", "validation", "Val", "test"])
def test_held_out_folder_is_used_whole(tmp_path, held):
    write_tree(tmp_path, {"train/cat": 3, "train/dog": 2, f"{held}/cat": 1, f"{held}/dog": 4})
    split = scan_folder(tmp_path)
    assert (len(split.train), len(split.val), split.test) == (5, 5, None)
    assert split.val.root == str(tmp_path / held)
    assert split.val.labels.tolist() == [0, 1, 1, 1, 1]


def test_test_folder_beside_val_is_kept_apart(tmp_path):
    write_tree(tmp_path, {"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 1, "test/cat": 2, "test/dog": 5})
    split = scan_folder(tmp_path)
    assert split.test is not None
    assert (len(split.train), len(split.val), len(split.test)) == (5, 2, 7)


def test_train_folder_alone_is_split(tmp_path):
    split = scan_folder(write_tree(tmp_path, {"train/cat": 5, "train/dog": 5}), 0.2)
    assert split.class_names == ["cat", "dog"]
    assert (len(split.train), len(split.val)) == (8, 2)


def test_other_folders_beside_train_and_val_are_no_classes(tmp_path):
    split = scan_folder(write_tree(tmp_path, {"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 1, "raw": 4}))
    assert split.class_names == ["cat", "dog"]


def test_a_class_may_be_called_train(tmp_path):
    split = scan_folder(write_tree(tmp_path, {"train": 3, "car": 3, "bus": 3}))
    assert split.class_names == ["bus", "car", "train"]


def test_two_held_out_folders_are_ambiguous(tmp_path):
    write_tree(tmp_path, {"train/cat": 1, "train/dog": 1, "val/cat": 1, "valid/cat": 1})
    with pytest.raises(ValueError, match="must have one val folder, got val/ and valid/"):
        scan_folder(tmp_path)


def test_hidden_folders_and_files_are_skipped(tmp_path):
    write_tree(tmp_path, {"cat": 3, "dog": 2, ".ipynb_checkpoints": 2, "__MACOSX": 2, "cat/.ipynb_checkpoints": 2})
    (tmp_path / "cat" / "._000.png").write_bytes(b"resource fork")
    (tmp_path / ".DS_Store").write_bytes(b"x")
    split = scan_folder(tmp_path)
    assert split.class_names == ["cat", "dog"]
    assert len(split.train) + len(split.val) == 5


def test_nested_folders_links_and_endings(tmp_path):
    write_tree(tmp_path / "data", {"cat/2023/may": 2, "cat": 1, "dog": 2})
    (tmp_path / "data" / "dog" / "LOUD.JPG").write_bytes(encode(noise(7, 5, 9), "JPEG"))
    (tmp_path / "data" / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "data" / "dog" / "readme").write_text("no image")
    write_tree(tmp_path / "elsewhere", {"yak": 2})
    os.symlink(tmp_path / "elsewhere" / "yak", tmp_path / "data" / "yak")
    os.symlink(tmp_path / "data" / "dog" / "000.png", tmp_path / "data" / "cat" / "link.png")
    os.symlink(tmp_path / "data" / "cat", tmp_path / "data" / "cat" / "2023" / "loop")
    split = scan_folder(tmp_path / "data", 0.2)
    found = sorted([*split.train.names, *split.val.names])
    assert found == [
        "cat/000.png",
        "cat/2023/may/000.png",
        "cat/2023/may/001.png",
        "cat/link.png",
        "dog/000.png",
        "dog/001.png",
        "dog/LOUD.JPG",
        "yak/000.png",
        "yak/001.png",
    ]
    assert split.ignored == {".txt": 1, "no ending": 1}


def test_classes_are_sorted_plainly(tmp_path):
    assert scan_folder(write_tree(tmp_path, {"b": 2, "a10": 2, "a2": 2, "B": 2})).class_names == ["B", "a10", "a2", "b"]


def test_empty_class_folder_is_warned_of_and_takes_no_number(tmp_path):
    write_tree(tmp_path, {"train/ant": 0, "train/cat": 2, "train/dog": 2, "val/ant": 0, "val/cat": 1, "val/dog": 1})
    with pytest.warns(UserWarning, match="class folders without images are left out: 'ant'") as caught:
        split = scan_folder(tmp_path)
    assert len(caught) == 2  # train and val
    assert split.class_names == ["cat", "dog"]
    assert split.val.labels.tolist() == [0, 1]


def test_class_missing_from_val_is_warned_of_and_numbers_stay(tmp_path):
    write_tree(tmp_path, {"train/ant": 2, "train/cat": 2, "train/dog": 2, "val/cat": 1, "val/dog": 3})
    with pytest.warns(UserWarning, match=f"no images to validate on of 'ant': {tmp_path}/val holds none$"):
        split = scan_folder(tmp_path)
    assert split.class_names == ["ant", "cat", "dog"]
    assert _labels_by_name(split.val) == {"cat/000.png": 1, "dog/000.png": 2, "dog/001.png": 2, "dog/002.png": 2}


def test_class_unknown_to_train_is_an_error(tmp_path):
    write_tree(tmp_path, {"train/cat": 2, "train/dog": 2, "val/cat": 1, "val/zebra": 1})
    with pytest.raises(
        ValueError, match="val holds images of 'zebra', which the training folder lacks: its classes are 'cat', 'dog'"
    ):
        scan_folder(tmp_path)


def test_given_class_table_is_kept_to(tmp_path):
    write_tree(tmp_path, {"dog": 5, "cat": 5})
    with pytest.warns(UserWarning, match="'ant'") as caught:
        split = scan_folder(tmp_path, class_names=["dog", "ant", "cat"])
    assert len(caught) == 2
    assert split.class_names == ["dog", "ant", "cat"]
    assert set(_labels_by_name(split.train).values()) == {0, 2}
    with pytest.raises(
        ValueError, match="holds images of 'dog', which the model does not know: its classes are 'cat', 'ant'"
    ):
        scan_folder(tmp_path, class_names=["cat", "ant"])


def test_folder_without_train_can_be_evaluated_with_a_class_table(tmp_path):
    write_tree(tmp_path, {"val/cat": 2, "val/dog": 3})
    with pytest.raises(ValueError, match="has val/ but no train/, which names the classes"):
        scan_folder(tmp_path)
    split = scan_folder(tmp_path, class_names=["cat", "dog"])
    assert (len(split.train), len(split.val)) == (0, 5)


def test_everything_held_out(tmp_path):
    split = scan_folder(write_tree(tmp_path, {"cat": 2, "dog": 1}), 1.0)
    assert (len(split.train), split.val.labels.tolist()) == (0, [0, 0, 1])


def test_class_of_one_image_stays_in_training(tmp_path):
    with pytest.warns(UserWarning, match="of 'dog': only one image, which is trained on; add another$"):
        split = scan_folder(write_tree(tmp_path, {"cat": 4, "dog": 1}), 0.5)
    assert (split.train.labels.tolist(), split.val.labels.tolist()) == ([0, 0, 1], [0, 0])


def test_images_beside_class_folders_are_warned_of(tmp_path):
    write_tree(tmp_path, {"cat": 2, "dog": 2, ".": 3})
    with pytest.warns(UserWarning, match=f"left out 3 images beside the class folders, such as {tmp_path}/000.png$"):
        scan_folder(tmp_path)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({".": 4}, "holds 4 images but no class folders; put each class in a folder of its own"),
        ({"train": 4}, "train holds 4 images but no class folders"),
        ({"train": 4, "val": 2}, "train holds 4 images but no class folders"),
        ({"cat": 4}, "must hold images of at least two classes, got only 'cat'"),
        ({"cat": 4, "dog": 0}, "must hold images of at least two classes, got only 'cat'"),
        ({"cat": 0, "dog": 0}, r"holds no images in class folders \(endings \.avif"),
        ({".": 0}, "holds no images in class folders"),
        ({"train/cat": 1, "train/dog": 1, "val": 0}, "val holds no images in class folders"),
    ],
    ids=str,
)
def test_unusable_layouts_have_one_clear_error(tmp_path, counts, message):
    with pytest.raises(ValueError, match=message):
        read_folder(write_tree(tmp_path, counts))


def test_other_endings_are_named_when_there_are_no_images(tmp_path):
    (tmp_path / "cat").mkdir()
    for name in ("a.heic", "b.HEIC", "c.txt"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=r"other files found: 2 \.heic, 1 \.txt; convert \.heic to JPEG or PNG$"):
        scan_folder(tmp_path)


@pytest.mark.parametrize(("name", "state"), [("none", "does not exist"), ("file.zip", "is a file")])
def test_path_must_be_a_folder(tmp_path, name, state):
    (tmp_path / "file.zip").write_bytes(b"x")
    with pytest.raises(ValueError, match=f"path must be a folder of images, got .*{name}', which {state}"):
        scan_folder(tmp_path / name)


def test_image_list_holds_no_python_list_and_pickles_small(tmp_path):
    names = [f"cat/{number:05d}.jpg" for number in range(10_007)]
    images = ImageList(tmp_path, names, np.zeros(10_007))
    held = [*vars(images).values(), *vars(images.names).values()]
    assert not any(isinstance(value, (list, tuple, dict)) for value in held)
    assert len(pickle.dumps(images)) < 10_007 * (len("cat/00000.jpg") + 16) + 2_000
    assert Path(images.path(10_006)) == tmp_path / "cat" / "10006.jpg"


def test_image_list_loads(tmp_path):
    split = scan_folder(write_tree(tmp_path, {"cat": 2, "dog": 2}, size=(13, 11)), 0.5)
    assert split.train.load(1, 3).size == (13, 11)
    assert split.train.load(0, 1).mode == "L"


def test_links_to_themselves_are_files_and_no_folders(tmp_path):
    write_tree(tmp_path, {"cat": 3, "dog": 3})
    for place in ("loop", "dog/loop", "dog/loop.png"):
        os.symlink(tmp_path / place, tmp_path / place)
    split = scan_folder(tmp_path)
    assert split.class_names == ["cat", "dog"]
    assert "dog/loop.png" in [*split.train.names, *split.val.names]
    assert split.ignored == {"no ending": 1}


@pytest.mark.parametrize(
    ("name", "state"),
    [("loop", "is a link that leads nowhere"), ("file.txt/x", "does not exist"), ("x" * 300, "does not exist")],
)
def test_path_that_the_system_refuses_is_told_in_one_line(tmp_path, name, state):
    (tmp_path / "file.txt").write_text("x")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with pytest.raises(ValueError, match=f"path must be a folder of images, got .*', which {state}"):
        read_folder(tmp_path / name)


def test_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=f"^{tmp_path} cannot be listed: Permission denied$"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["caf\udce9", "two\nlines", "\x1b[2J"])
def test_class_name_that_cannot_be_written_down_is_refused(tmp_path, name):
    write_tree(tmp_path, {name: 2, "cat": 2})
    with pytest.raises(ValueError, match="must have names in UTF-8 without control characters, got") as caught:
        read_folder(tmp_path)
    assert repr(name) in str(caught.value)


def test_class_names_that_look_alike_are_warned_of(tmp_path):
    write_tree(tmp_path, {"caf\u00e9": 2, "cafe\u0301": 2, "tea": 2})
    with pytest.warns(UserWarning, match=r"look alike but differ .*: 'cafe\\u0301', 'caf\\xe9'$"):
        assert len(scan_folder(tmp_path).class_names) == 3
