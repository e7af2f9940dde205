import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from polaformer.runs.checkpoints import AtomicCheckpointIO, copy_atomically, find_checkpoint, read_checkpoint

KILLED_WHILE_SAVING = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from polaformer.runs.checkpoints import AtomicCheckpointIO, read_checkpoint

path = Path(sys.argv[1])
draw = random.Random(7)
writer = AtomicCheckpointIO()
writer.save_checkpoint({"polaformer": {}, "number": -1}, path)
saves = 0
while saves < 50:
    child = os.fork()
    if child == 0:
        number = saves
        while True:
            tensor = torch.full((61, 1009), float(number))
            writer.save_checkpoint({"polaformer": {}, "number": number, "tensor": tensor}, path)
            number += 1
    time.sleep(draw.uniform(0.0, 0.12))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    content = read_checkpoint(path)
    if content["number"] >= 0:
        assert bool((content["tensor"] == content["number"]).all())
    saves = max(saves, content["number"] + 1)
print(saves)
"""


@pytest.mark.slow
def test_kill_while_saving_always_leaves_a_whole_checkpoint(tmp_path):
    script = [sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path / "last.ckpt")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 50


def test_a_checkpoint_that_does_not_read_back_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"polaformer": {}, "number": 1}, path)
    whole_save = torch.save

    def truncated_save(content, target) -> None:
        whole_save(content, target)
        os.truncate(target, os.path.getsize(target) // 2)

    monkeypatch.setattr(torch, "save", truncated_save)
    with pytest.raises(ValueError, match=r"must be a complete \.ckpt file"):
        AtomicCheckpointIO().save_checkpoint({"polaformer": {}, "number": 2}, path)
    assert read_checkpoint(path)["number"] == 1
    assert list(tmp_path.iterdir()) == [path]


def test_one_changed_byte_in_a_tensor_is_found(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"polaformer": {}, "tensor": torch.zeros(997)}, path)
    content = bytearray(path.read_bytes())
    content[content.index(bytes(500)) + 250] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"must be a complete \.ckpt file, got .*last\.ckpt, which is not or is damaged"
    ):
        read_checkpoint(path)


def test_a_full_disk_is_one_line_and_leaves_the_old_checkpoint(tmp_path):
    script = """
import resource, signal, sys, torch
from polaformer.runs.checkpoints import AtomicCheckpointIO, read_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = sys.argv[1]
writer = AtomicCheckpointIO()
writer.save_checkpoint({"polaformer": {}, "number": 1}, path)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    writer.save_checkpoint({"polaformer": {}, "tensor": torch.zeros(99_991)}, path)
except OSError as error:
    print(error)
print(read_checkpoint(__import__("pathlib").Path(path))["number"])
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "last.ckpt")], capture_output=True, text=True, check=False
    )
    assert "last.ckpt could not be written: the disk or a limit on file sizes is full\n1\n" in result.stdout, (
        result.stderr
    )
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_objects_other_than_tensors_and_plain_values_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r"must be a complete \.ckpt file"):
        AtomicCheckpointIO().save_checkpoint({"polaformer": {}, "path": Path("x")}, tmp_path / "last.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    with pytest.raises(OSError, match=r"the checkpoint .*gone/last\.ckpt could not be written"):
        AtomicCheckpointIO().save_checkpoint({"polaformer": {}}, tmp_path / "gone" / "last.ckpt")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=r"could not be written: .*Permission denied"):
        AtomicCheckpointIO().save_checkpoint({"polaformer": {}}, tmp_path / "last.ckpt")
    assert list(tmp_path.iterdir()) == []


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("run-by-the-pickle",)


def test_what_is_no_checkpoint_of_a_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.ckpt"
    with pytest.raises(ValueError, match=r"must be an existing file, got .*x\.ckpt"):
        read_checkpoint(path)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"must be a complete \.ckpt file"):
        read_checkpoint(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match="one that polaformer fit wrote"):
        read_checkpoint(path)
    path.write_bytes(pickle.dumps({"polaformer": Malicious()}))
    with pytest.raises(ValueError, match=r"must be a complete \.ckpt file"):
        read_checkpoint(path)
    assert not Path("run-by-the-pickle").exists()


def test_resuming_takes_a_folder_or_a_file(tmp_path):
    path = tmp_path / "last.ckpt"
    with pytest.raises(ValueError, match=r"resume must be a run folder with last\.ckpt in it.*got .*last\.ckpt"):
        find_checkpoint(tmp_path)
    path.write_bytes(b"")
    assert find_checkpoint(tmp_path) == find_checkpoint(str(path)) == path


def test_resuming_from_an_earlier_checkpoint_would_lose_the_last(tmp_path):
    for name in ("last.ckpt", "best.ckpt"):
        (tmp_path / name).write_text(name)
    with pytest.raises(ValueError, match=r"got .*best\.ckpt: going on from there would overwrite .*last\.ckpt"):
        find_checkpoint(tmp_path / "best.ckpt")


def test_a_copy_replaces_the_target(tmp_path):
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("older")
    copy_atomically(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "new"
