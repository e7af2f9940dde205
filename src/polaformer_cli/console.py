"""Where the command's words go: results to stdout, complaints to stderr, one process speaking for all."""

from __future__ import annotations

import os
import sys


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that torchrun or Lightning started together."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def say(text: str) -> None:
    """Write a result line to stdout, from the first process only; what stdout cannot encode is written as escapes."""
    if is_first_process():
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()


def complain(program: str, problem: str) -> None:
    """Write `program: problem` to stderr as one line, whatever lines the problem had, from any process."""
    line = " ".join(part.strip() for part in problem.splitlines() if part.strip())
    sys.stderr.write(f"{program}: {line}\n")
    sys.stderr.flush()


def nearest(word: str, known: list[str], likeness: float = 0.5, count: int = 1) -> str:
    """The known words closest to a mistyped one, as '; did you mean X?', or '' where none is that alike (0 to 1)."""
    # Imported here: difflib is needed only after a mistake, and the help pages should not wait for it.
    import difflib

    close = difflib.get_close_matches(word, known, n=count, cutoff=likeness)
    return f"; did you mean {' or '.join(close)}?" if close else ""
