"""What lies in a folder and below it: links followed, hidden names left out, in an order that depends on names alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .names import printable


def walk_files(folder: str | os.PathLike[str], above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the files in and below a folder, links followed, hidden names and links that lead back up left out.

    Args:
        folder: where to look.
        above: real paths of the folders that led here.

    Yields:
        Names relative to the folder with forward slashes, each folder's in plain sorted order.

    Raises:
        ValueError: a folder cannot be listed.
    """
    place = os.path.realpath(folder)
    if place in above:
        return
    for entry in visible(folder):
        if is_folder(entry):
            yield from (f"{entry.name}/{name}" for name in walk_files(entry, above | {place}))
        else:
            yield entry.name


def visible(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Entries of a folder in plain sorted order, without hidden ones and `__MACOSX`.

    Raises:
        ValueError: the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".") and entry.name != "__MACOSX"]
    except OSError as error:
        raise ValueError(f"{printable(os.fspath(folder))} cannot be listed: {error.strerror}") from error
    return sorted(shown, key=lambda entry: entry.name)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: no folder, and reading it as a file says what is wrong
        return False
