"""How the library's log lines and warnings look to someone at the command line."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from polaformer.data.digits import DIGITS
from polaformer_cli.console import complain, nearest
from polaformer_cli.parser import UsageError


class _LogHandler(logging.Handler):
    """Writes log lines to stderr above a progress bar, and warnings as such."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(sys.stderr):
            if record.levelno >= logging.WARNING:
                complain(self._program, f"warning: {record.getMessage()}")
            else:
                sys.stderr.write(record.getMessage() + "\n")


@contextmanager
def plain_messages(program: str) -> Iterator[None]:
    """Show the library's log lines on stderr as they are, and warnings as one line without their place in the code."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        with tqdm.external_write_mode(sys.stderr):
            complain(program, f"warning: {message}")

    handler = _LogHandler(program)
    logger = logging.getLogger("polaformer")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            # Of odd files, without their names; a file that cannot be used is named with the reason all the same.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@contextmanager
def bars_on_stderr() -> Iterator[None]:
    """Send progress bars, which Lightning draws on stdout, to stderr: stdout is for results that programs read."""
    with redirect_stdout(sys.stderr):
        yield


def check_place(option: str, path: str | None, kind: str = "file or folder") -> None:
    """Raise unless an option's file or folder is there, naming the nearest that is."""
    if path is None or os.path.lexists(path):
        return
    folder = Path(path).parent
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    raise UsageError(f"{option} must be an existing {kind}, got {path}{nearest(Path(path).name, names)}")


def check_folder(option: str, path: str | None) -> None:
    """Raise unless an option's folder of images is there; 'digits' needs none."""
    if path is None or path == DIGITS or os.path.isdir(path):
        return
    check_place(option, path, "folder")
    state = "a link that leads nowhere" if not os.path.exists(path) else "a file"
    raise UsageError(f"{option} must be an existing folder, got {path}, which is {state}")


def check_target(option: str, path: str) -> None:
    """Raise unless a file can be put there: better now than after hours of predicting."""
    folder = os.path.dirname(path) or "."
    taken = path == "" or (os.path.exists(path) and not os.path.isfile(path))  # a folder, pipe or device
    if taken or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ValueError(f"{option} must be a file in an existing folder that can be written to, got {path!r}")


def end_bar() -> None:
    """Leave the line of a progress bar that was cut short."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")
