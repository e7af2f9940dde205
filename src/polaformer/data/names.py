"""Names and counts as text: one line each that terminals, tables and text files can hold."""

from __future__ import annotations

import unicodedata

UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories: control characters, surrogates (bytes that are no UTF-8), line and paragraph separators."""


def printable(name: str) -> str:
    r"""A name with what would break a line, drive the terminal or fail to encode written as in Python's source.

    Args:
        name: of a file, folder or class, as the file system gives it.

    Returns:
        One line of valid Unicode; 'a\x1b.png' for a name that holds an escape character.
    """
    return "".join(
        char.encode("unicode_escape").decode("ascii") if unicodedata.category(char) in UNPRINTABLE else char
        for char in name
    )


def counted(number: int, noun: str) -> str:
    """'1 image', '2 images'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
