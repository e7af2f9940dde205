"""Files that are either there in full or not there at all, and archives that are what was written."""

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Union


@contextmanager
def atomic_write(path: Union[str, Path]) -> Iterator[Path]:
    """Write a file under a temporary name and move it to `path` once it is complete and on the disk.

    Whenever the process is killed, `path` holds either what it held before or the whole new file. If the body raises,
    the temporary file is removed and `path` is left alone.

    Args:
        path: The file to write; its folder must exist.

    Yields:
        A path in the same folder to write to.

    Raises:
        OSError: the folder is missing or cannot be written to.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _give_usual_mode(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def check_archive(path: Union[str, Path]) -> None:
    """Raise ValueError unless every part of a zip archive is what was written; PyTorch reads changed tensors silently."""
    with zipfile.ZipFile(path) as archive:
        changed = archive.testzip()
    if changed:
        raise ValueError(f"{changed} in it is not what was written")


def write_text(path: Union[str, Path], text: str) -> None:
    """Write a UTF-8 text file as `atomic_write` does."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _give_usual_mode(path: Path) -> None:
    # mkstemp makes files that only their owner can read; a checkpoint should be as readable as any other new file.
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders; its rename is durable by itself
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
