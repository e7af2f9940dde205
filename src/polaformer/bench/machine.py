"""On what something was measured: without that a time means nothing."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, torch's threads, graphics processors, versions and the time, as plain values for JSON."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "system": platform.platform(),
        "versions": {
            "polaformer": version("polaformer"),
            "torch": torch.__version__,
            "timm": version("timm"),
            "python": platform.python_version(),
            "cuda": torch.version.cuda if gpus else None,
        },
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
