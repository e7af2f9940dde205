import os

import pytest

from polaformer.data.listing import walk_files


def test_files_of_each_folder_in_the_order_of_names_without_hidden_ones(tmp_path):
    for name in ("b/2.png", "b/10.png", "a", "c.txt", ".hidden/x.png", "b/.hidden.png", "__MACOSX/y.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(walk_files(tmp_path)) == ["a", "b/10.png", "b/2.png", "c.txt"]


def test_links_are_followed_but_not_back_up(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x.png").touch()
    os.symlink(tmp_path / "out", tmp_path / "in" / "deep" / "linked")
    os.symlink(tmp_path / "in", tmp_path / "in" / "deep" / "up")
    os.symlink(tmp_path / "in" / "self", tmp_path / "in" / "self")
    assert list(walk_files(tmp_path / "in")) == ["deep/linked/x.png", "self"]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"^{tmp_path}/none cannot be listed: No such file or directory$"):
        list(walk_files(tmp_path / "none"))
