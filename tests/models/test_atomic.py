"""Files are whole or absent."""

import os
import subprocess
import sys
import time

import pytest

from polaformer.models.atomic import atomic_write


def test_writes_the_whole_file_and_nothing_else(tmp_path):
    with atomic_write(tmp_path / "a.bin") as temporary:
        assert temporary.parent == tmp_path
        temporary.write_bytes(b"new")
        assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_an_error_leaves_the_old_file_and_no_temporary_one(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"old")

    def write_half():
        with atomic_write(tmp_path / "a.bin") as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_half()
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_files_are_as_readable_as_any_new_file(tmp_path):
    (tmp_path / "usual").touch()
    with atomic_write(tmp_path / "a.bin") as temporary:
        temporary.write_bytes(b"new")
    assert (tmp_path / "a.bin").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "nowhere" / "a.bin"):
        pass


WRITER = """
import itertools, sys
from pathlib import Path
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("atomic", sys.argv[1])
atomic = module_from_spec(spec)
spec.loader.exec_module(atomic)
for number in itertools.count():
    with atomic.atomic_write(sys.argv[2]) as temporary:
        with open(temporary, "wb") as file:
            for _ in range(50):
                file.write(bytes([number % 251]) * 997)
"""


def test_killed_at_any_moment_the_file_is_whole(tmp_path):
    path = tmp_path / "a.bin"
    source = sys.modules[atomic_write.__module__].__file__
    for attempt in range(7):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(source), str(path)])
        while not path.exists():
            time.sleep(0.002)
        time.sleep(0.003 * attempt)
        writer.kill()
        writer.wait()
        content = path.read_bytes()
        assert len(content) == 50 * 997
        assert len(set(content)) == 1
