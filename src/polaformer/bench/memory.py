"""How much memory a call needs at its worst, above what was there before."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import (
    ProfilerConfig,
    ProfilerState,
    _disable_profiler_legacy,  # pyright: ignore[reportAttributeAccessIssue]
    _enable_profiler_legacy,  # pyright: ignore[reportAttributeAccessIssue]
)


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Return the largest number of bytes that lay in PyTorch's allocator during a call, above those before it.

    Args:
        function: what to call; its result is dropped at the end of the call.
        device: the device whose memory counts, CPU or CUDA.
    """
    collecting = gc.isenabled()
    gc.disable()  # garbage of earlier calls, collected during this one, would make it look smaller
    try:
        return _peak_on_cuda(function, device) if device.type == "cuda" else _peak_on_cpu(function)
    finally:
        if collecting:
            gc.enable()


def _peak_on_cuda(function: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    function()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(function: Callable[[], object]) -> int:
    held = peak = 0
    for change in _allocations(function):
        held += change
        peak = max(peak, held)
    return peak


def _allocations(function: Callable[[], object]) -> list[int]:
    """Bytes taken and (negative) given back on the CPU, in their order."""
    # The profiler sees the allocator itself, inside the kernels of custom operators too, where no dispatch mode looks. The
    # older of its two forms writes nothing to the screen.
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()))
    try:
        function()
    finally:
        threads = _disable_profiler_legacy()
    events = [event for thread in threads for event in thread if event.kind() == "memory_alloc"]
    return [event.cpu_memory_usage() for event in events]
