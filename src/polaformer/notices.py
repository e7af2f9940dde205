"""Warnings that name the user's own line, however deep inside this package, or in Lightning's hooks, they arise."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

PACKAGE = "polaformer"


def warn_user(message: str) -> None:
    """Warn at the line that called this package.

    Args:
        message: one line.
    """
    levels_up = 0  # from this function to the outermost function of the package
    frame: FrameType | None = sys._getframe()
    for level in range(sys.getrecursionlimit()):
        if frame is None:
            break
        if frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
            levels_up = level
        frame = frame.f_back
    warnings.warn(message, UserWarning, stacklevel=levels_up + 2)  # 1 is this function, and one more its caller
