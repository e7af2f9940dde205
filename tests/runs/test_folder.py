import subprocess
import sys

import pytest

from polaformer.recipe import DataConfig, ModelConfig, Recipe, RunConfig
from polaformer.runs.folder import RunFolder, check_name_is_free, create_folder, git_state, lock_folder


def recipe(directory, name=None) -> Recipe:
    return Recipe(
        model=ModelConfig(name="pola_pvt_nano"),
        data=DataConfig(path="some/flowers/"),
        run=RunConfig(str(directory), name),
    )


def test_folders_are_numbered_by_model_and_data(tmp_path):
    runs = tmp_path / "deep" / "runs"
    names = [create_folder(recipe(runs)).path.name for _ in range(3)]
    assert names == ["pola_pvt_nano-flowers-1", "pola_pvt_nano-flowers-2", "pola_pvt_nano-flowers-3"]


def test_a_name_is_used_once(tmp_path):
    folder = create_folder(recipe(tmp_path, "mine"))
    assert folder.path == tmp_path / "mine"
    check_name_is_free(recipe(tmp_path, "mine"))  # nothing in it yet
    folder.classes.write_text("a\n")
    with pytest.raises(ValueError, match=r"run\.name must be new in .*, got 'mine'.*resume it with --resume"):
        create_folder(recipe(tmp_path, "mine"))


def test_a_parent_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"run\.dir must be a folder that can be written, got .*file/runs: "):
        create_folder(recipe(tmp_path / "file" / "runs"))


def test_git_state_of_a_repository_and_of_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]

    def git(*arguments: str) -> None:
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    state = git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["changed"] is False
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": state["commit"], "changed": True}


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "/tmp/elsewhere", "a/b"])
def test_a_name_does_not_leave_the_parent(tmp_path, name):
    with pytest.raises(ValueError, match=r"run\.name must be the name of a folder in run\.dir"):
        create_folder(recipe(tmp_path, name))


def test_one_process_trains_in_a_folder(tmp_path):
    lock = lock_folder(RunFolder(tmp_path))
    code = (
        "import sys; from pathlib import Path; from polaformer.runs.folder import RunFolder, lock_folder\n"
        "lock_folder(RunFolder(Path(sys.argv[1])))"
    )
    second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert f"ValueError: the run in {tmp_path} is in progress" in second.stderr
    lock.release()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 0
