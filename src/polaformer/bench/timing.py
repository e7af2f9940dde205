"""How long functions take beside one another: paired runs in turn, so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil

import torch

LEAST_SECONDS = 0.005
"""A run repeats a function until it takes this long, so that reading the clock does not count."""

MOST_REPEATS = 1000


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of several measured values."""

    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise at least one value."""
        values = list(values)
        return cls(min(values), statistics.median(values), max(values))


def time_in_turn(
    functions: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Time functions in turn, every other round in reverse.

    Args:
        functions: what to time, by name.
        rounds: runs of each; the n-th runs of all lie next to one another in time.
        device: what the functions compute on; a CUDA device is waited for.

    Returns:
        Seconds a call, one for each round, by the same names.
    """
    repeats = {name: _repeats(function, device) for name, function in functions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds):
        for name in list(functions)[:: 1 if number % 2 == 0 else -1]:
            seconds[name].append(_run(functions[name], repeats[name], device) / repeats[name])
    return seconds


def ratios(seconds: Mapping[str, list[float]], name: str, base: str) -> Spread:
    """Return how many times as long `name` took as `base`, round by round."""
    return Spread.of(mine / other for mine, other in zip(seconds[name], seconds[base]))


def _repeats(function: Callable[[], object], device: torch.device) -> int:
    _run(function, 1, device)  # the first call may allocate, compile or choose
    once = _run(function, 1, device)
    return min(ceil(LEAST_SECONDS / once), MOST_REPEATS) if once > 0 else MOST_REPEATS


def _run(function: Callable[[], object], repeats: int, device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    for _ in range(repeats):
        function()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
