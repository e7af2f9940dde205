"""Many strings in one block of memory.

A Python list of a million paths is a million objects whose reference counts change whenever a loader process looks at
one; each such write copies the memory page it sits on, so every process slowly grows its own copy of the list. Two
numpy arrays have no reference counts inside and stay shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np


class PackedStrings:
    """An immutable sequence of strings kept as UTF-8 bytes and offsets.

    Args:
        strings: the strings, in order; file names that are not valid Unicode keep their bytes (surrogateescape).
    """

    def __init__(self, strings: Iterable[str]) -> None:
        data = bytearray()
        ends = [0]
        for string in strings:
            data += string.encode("utf-8", "surrogateescape")
            ends.append(len(data))
        self._bytes = np.frombuffer(bytes(data), dtype=np.uint8)
        self._ends = np.asarray(ends, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"index must be in 0..{len(self) - 1}, got {index}")
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))
