"""How a kernel is launched: which block sizes there are, which fit the device, and what is done if one does not run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from . import tuning

Result = TypeVar("Result")


class Config(NamedTuple):
    """Tokens, channels of q and k, and channels of v in a block; warps a program; stages of the loads' pipeline."""

    rows: int
    channels: int
    values: int
    warps: int
    stages: int


class Device(NamedTuple):
    """What a launch needs to know of a device; shared memory in bytes, of one program."""

    name: str
    processors: int
    shared_memory: int


class Problem(NamedTuple):
    """What decides whether a config runs: the device, the dtypes of q, k and v, the channels of q and of v."""

    device: Device
    dtypes: tuple[torch.dtype, ...]
    channels: int
    values: int


class NoConfigError(RuntimeError):
    """No config of a kernel runs here; says why the last one does not."""


# In the order in which they are tried: the first is taken unless tuning has found a better one, the last needs the least.
CONFIGS = (
    Config(32, 64, 64, 8, 2),
    Config(64, 64, 64, 8, 2),
    Config(128, 64, 64, 8, 2),
    Config(32, 64, 64, 4, 2),
    Config(16, 64, 64, 4, 2),
    Config(32, 32, 32, 4, 2),
    Config(16, 16, 16, 2, 1),
)
# Chunks of tokens are a multiple of this, and no smaller than twice of it.
LARGEST_ROWS = max(config.rows for config in CONFIGS)
_INTERPRETER = Device("interpreter", 4, 1 << 20)
_failures: dict[tuple[str, Problem, Config], str] = {}


def launch(kernel: str, problem: Problem, tokens: int, run: Callable[[Config], Result]) -> Result:
    """Return `run(config)` for the kernel's best config; one that raises is not tried again, and the next one takes its place.

    Raises:
        NoConfigError: none runs.
    """
    candidates = candidates_for(problem, tokens)
    reason = f"no block fits the {problem.device.shared_memory} bytes of shared memory of {problem.device.name}"
    if tuning.is_enabled():
        best = tuning.best_config(
            tuning.key_of(kernel, problem, tokens),
            candidates,
            lambda config: _attempt(kernel, problem, config, run) is not None,
            run,
        )
        candidates = [*([best] if best else []), *candidates]
    for config in candidates:
        attempt = _attempt(kernel, problem, config, run)
        if attempt is not None:
            return attempt[0]
        reason = _failures[kernel, problem, config]
    raise NoConfigError(reason)


def _attempt(kernel: str, problem: Problem, config: Config, run: Callable[[Config], Result]) -> tuple[Result] | None:
    """Return the result in a tuple, or None where the config does not run."""
    if (kernel, problem, config) in _failures:
        return None
    try:
        return (run(config),)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the compiler, the assembler and the driver each fail with errors of their own
        text = str(error).strip() or repr(error)
        _failures[kernel, problem, config] = f"{type(error).__name__} in {kernel}: {text.splitlines()[0]}"
        return None


def candidates_for(problem: Problem, tokens: int) -> list[Config]:
    """Return the configs cut to the problem's sizes, without those that need more shared memory than the device has."""
    cut = [
        config._replace(
            rows=min(config.rows, _block(tokens)),
            channels=min(config.channels, _block(problem.channels)),
            values=min(config.values, _block(problem.values)),
        )
        for config in CONFIGS
    ]
    itemsize = max(dtype.itemsize for dtype in problem.dtypes)
    return [config for config in dict.fromkeys(cut) if shared_memory(config, itemsize) <= problem.device.shared_memory]


def shared_memory(config: Config, itemsize: int) -> int:
    """Estimate the bytes of shared memory that a program needs for inputs of `itemsize` bytes an element."""
    features = 2 * config.rows * config.channels * 4
    inputs = config.stages * config.rows * (config.channels + config.values) * itemsize
    state = 2 * config.channels * config.values * 4
    return features + inputs + state


def split(tokens: int, programs: int, device: Device) -> tuple[int, int]:
    """Return into how many chunks the tokens are cut for `programs` programs a chunk to fill the device, and their size."""
    wanted = math.ceil(2 * device.processors / programs)
    chunk = max(math.ceil(tokens / wanted), 2 * LARGEST_ROWS)
    chunk = math.ceil(chunk / LARGEST_ROWS) * LARGEST_ROWS
    return math.ceil(tokens / chunk), chunk


@functools.cache
def describe(device: torch.device) -> Device:
    """Describe a GPU, or what Triton's interpreter stands for on the CPU."""
    if device.type == "cpu":
        return _INTERPRETER
    import triton

    index = torch.cuda.current_device() if device.index is None else device.index
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return Device(torch.cuda.get_device_name(index), properties["multiprocessor_count"], properties["max_shared_mem"])


def _block(size: int) -> int:
    """Round up to a power of two that a matrix product takes."""
    return max(16, 1 << (size - 1).bit_length())
