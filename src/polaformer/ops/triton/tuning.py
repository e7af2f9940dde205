"""Measured block sizes: only where POLAFORMER_AUTOTUNE=1 asks for them, once for a machine, kept in the user's cache folder.

Lengths share a result within a factor of four, so that new resolutions seldom measure anew. One small file a result: several
processes can write side by side, and none can lose another's.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .configs import Config, Problem

_VARIABLE = "POLAFORMER_AUTOTUNE"
_known: dict[str, Config] = {}


def is_enabled() -> bool:
    """Return whether POLAFORMER_AUTOTUNE asks for measuring.

    Raises:
        ValueError: it is neither 0, 1 nor empty.
    """
    value = os.environ.get(_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{_VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


def key_of(kernel: str, problem: Problem, tokens: int) -> str:
    """Name the problems that share a result: same device, dtypes and channels, lengths up to the same power of four."""
    bucket = 4 ** (((tokens - 1).bit_length() + 1) // 2)
    dtypes = "-".join(str(dtype).removeprefix("torch.") for dtype in problem.dtypes)
    key = f"{kernel}-{problem.device.name}-{dtypes}-{problem.channels}x{problem.values}-{bucket}"
    return re.sub(r"[^\w.-]+", "_", key)


def best_config(
    key: str, candidates: Sequence[Config], runs: Callable[[Config], bool], run: Callable[[Config], Any]
) -> Config | None:
    """Return the config measured fastest for this key, now or earlier; None if none runs.

    Args:
        key: Of `key_of`.
        candidates: The configs to choose from; a stored one that is not among them is measured anew.
        runs: Whether a config runs at all; called before it is measured, which also compiles it.
        run: What is measured.
    """
    config = _known.get(key) or _read(_file(key), candidates)
    if config is None or config not in candidates:
        times = {candidate: measure(lambda c=candidate: run(c)) for candidate in candidates if runs(candidate)}
        if not times:
            return None
        config = min(times, key=lambda candidate: times[candidate])
        _write(_file(key), config)
    _known[key] = config
    return config


def measure(run: Callable[[], Any]) -> float:
    """Return the median time of `run` on the current device in milliseconds."""
    from triton.testing import do_bench

    time = do_bench(run, warmup=5, rep=20, return_mode="median")
    assert isinstance(time, float)
    return time


def _file(key: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "polaformer" / "triton" / f"{key}.json"


def _read(file: Path, candidates: Sequence[Config]) -> Config | None:
    try:
        stored = json.loads(file.read_text())
        return next((config for config in candidates if config._asdict() == stored), None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"the tuning result {file} is measured anew, it cannot be read: {error}", stacklevel=2)
        return None


def _write(file: Path, config: Config) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as part:
            json.dump(config._asdict(), part)
        os.replace(part.name, file)
    except OSError as error:
        warnings.warn(f"the tuning result {file} cannot be kept: {error}", stacklevel=2)
