"""How the library's log lines and warnings look to someone at the command line."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from polaformer_cli.console import complain


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
        complain(program, f"warning: {message}")

    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("polaformer")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@contextmanager
def bars_on_stderr() -> Iterator[None]:
    """Send progress bars, which Lightning draws on stdout, to stderr: stdout is for results that programs read."""
    with redirect_stdout(sys.stderr):
        yield


def end_bar() -> None:
    """Leave the line of a progress bar that was cut short."""
    sys.stderr.write("\n")
