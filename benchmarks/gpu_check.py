"""Check and time the operator on this machine's GPU: `python benchmarks/gpu_check.py --out result.json` (under 5 minutes).

Every case is first compared with float64 arithmetic, output and gradients; one that fails is not timed. Then the Triton backend,
the reference backend, the published formula (eager and compiled) and PyTorch's fused softmax attention take turns, so that a
clock that changes changes all of them. Status: 0 all cases right, 1 some are not, 2 no GPU.
"""

import argparse
import datetime
import functools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polaformer import pola_attention
from polaformer.bench.contenders import published_attention, softmax_attention

# (batch, heads, tokens, channels): pyramid stages, a window model's stage, long sequences, odd sizes, one large batch.
SUITE = [
    (4, 1, 3136, 64), (4, 2, 784, 64), (4, 5, 196, 64), (4, 8, 49, 64), (4, 3, 3136, 32), (1, 8, 16384, 64),
    (2, 3, 1025, 48), (1, 1, 65536, 64), (256, 8, 196, 64),
]  # fmt: skip
# (batch, heads, queries, keys, channels, value channels): only compared. Several steps of every loop, odd and tiny sizes.
ODD = [
    (1, 1, 1, 1, 1, 1), (2, 3, 131, 257, 31, 37), (1, 2, 77, 3, 3, 5), (1, 2, 300, 4099, 15, 16), (2, 1, 67, 129, 80, 96),
    (1, 2, 129, 1025, 192, 48), (1, 1, 65, 513, 256, 131),
]  # fmt: skip
Sizes = tuple[int, int, int, int, int, int]
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 2e-5}
ROUNDS, SAMPLE_MS = 9, 2.0
# Compiling for each shape takes longer than all the rest: it stops here, so that the whole run stays under 5 minutes.
COMPILE_UNTIL_S, STOP_AFTER_S = 140, 270


def make_case(sizes: Sizes, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
    """Make q, k, v, power and the output's gradient."""
    batch, heads, queries, keys, channels, values = sizes
    generator = torch.Generator(device).manual_seed(queries + keys)
    randn = functools.partial(torch.randn, generator=generator, device=device)
    q, k = randn(batch, heads, queries, channels), randn(batch, heads, keys, channels)
    v, grad = randn(batch, heads, keys, values), randn(batch, heads, queries, values)
    power = 1 + 4 * torch.rand(heads, channels, generator=generator, device=device)
    return [q.to(dtype), k.to(dtype), v.to(dtype), power], grad.to(dtype)


def compare(inputs: list[Tensor], grad: Tensor, backend: str) -> dict[str, float]:
    """Return the backend's largest errors, over the largest expected value, of the output and of each gradient."""
    names = ["output", "q", "k", "v", "power"]
    actual = run_both(functools.partial(pola_attention, backend=backend), inputs, grad)
    expected = run_both(
        functools.partial(pola_attention, backend="reference"), [x.double() for x in inputs], grad.double()
    )
    errors = {}
    for name, x, wanted in zip(names, actual, expected):
        # Where all cancels (one key, say) a gradient is rounding of terms of size 1.
        size = wanted.abs().max().clamp(min=1e-3)
        error = ((x.double() - wanted).abs().max() / size).item()
        errors[name] = error if x.isfinite().all() else float("inf")
    return errors


def check(sizes: Sizes, dtype: torch.dtype, device: str, backend: str = "triton") -> dict[str, Any]:
    """Compare one case with float64; `reason` is empty if it is right."""
    row: dict[str, Any] = {"sizes": sizes, "dtype": name_of(dtype), "errors": {}, "reason": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a backend that falls back says so by a warning
        try:
            inputs, grad = make_case(sizes, dtype, device)
            row["errors"] = compare(inputs, grad, backend)
        except UserWarning as warning:
            row["reason"] = f"fell back: {warning}"
            return row
    for name, error in row["errors"].items():
        limit = LIMITS[dtype] * (1 if name == "output" else 10)
        if not error <= limit:
            row["reason"] = f"{name}: error {error:.1e}, limit {limit:.0e}"
    return row


def run_both(attend: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Run forward and backward."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = attend(*leaves)
    return (output.detach(), *torch.autograd.grad(output, leaves, grad, allow_unused=True))


def contenders(elapsed: float) -> dict[str, Callable[..., Tensor]]:
    """Return what takes part, by name."""
    functions = {
        "triton": functools.partial(pola_attention, backend="triton"),
        "reference": functools.partial(pola_attention, backend="reference"),
        "published": published_attention,
        "softmax": softmax_attention,
    }
    if elapsed < COMPILE_UNTIL_S:
        torch._dynamo.reset()
        functions["published compiled"] = torch.compile(published_attention, dynamic=False)
    return functions


def time_case(sizes: Sizes, dtype: torch.dtype, backward: bool, elapsed: float) -> dict[str, Any]:
    """Time all contenders in turn on the GPU and return (min, median, max) in milliseconds and peak memory in bytes by name."""
    inputs, grad = make_case(sizes, dtype, "cuda")
    runs: dict[str, Callable[[], Any]] = {}
    rows: dict[str, Any] = {}
    for name, function in contenders(elapsed).items():
        run = functools.partial(run_both, function, inputs, grad) if backward else functools.partial(function, *inputs)
        try:
            with torch.set_grad_enabled(backward):
                run()  # compiles
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                run()
                torch.cuda.synchronize()
        except (RuntimeError, torch.OutOfMemoryError) as error:
            rows[name] = {"reason": str(error).splitlines()[0]}
            continue
        runs[name] = run
        rows[name] = {"memory": torch.cuda.max_memory_allocated() - before}
    with torch.set_grad_enabled(backward):
        repeats = {name: max(1, round(SAMPLE_MS / max(sample(run, 1), 1e-3))) for name, run in runs.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                times[name].append(sample(run, repeats[name]))
    for name, values in times.items():
        rows[name]["ms"] = (min(values), statistics.median(values), max(values))
    return rows


def sample(run: Callable[[], Any], repeats: int) -> float:
    """Return the milliseconds of one run, the mean of several on end."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def measure_limits() -> dict[str, float]:
    """Measure the bytes a second of a copy, and the operations a second of a matrix product with TF32 operands."""
    x = torch.empty(2**28, device="cuda")
    y = torch.empty_like(x)
    a = torch.randn(8192, 8192, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    copy = min(sample(lambda: y.copy_(x), 5) for _ in range(5))
    product = min(sample(lambda: a @ a, 5) for _ in range(5))
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"bytes_per_s": 2 * x.nbytes / copy * 1e3, "tf32_flops_per_s": 2 * 8192**3 / product * 1e3}


def bound_ms(sizes: Sizes, dtype: torch.dtype, backward: bool, limits: dict[str, float]) -> tuple[float, str]:
    """Return the least time that the bytes that must move and the operations allow, and which of the two it is."""
    batch, heads, queries, keys, channels, values = sizes
    inputs = queries * channels + keys * (channels + values)
    output = queries * values
    moved = (
        inputs + output + (2 * inputs + output if backward else 0)
    )  # backward reads q, k, v and grad and writes three
    by_bytes = batch * heads * moved * dtype.itemsize / limits["bytes_per_s"]
    # Products of 2D × E a token: keys 1 and queries 1 forward; backward those again, then queries 2 and keys 2.
    tokens = (keys + queries) * (4 if backward else 1)
    passes = 3 if dtype is torch.float32 else 1  # float32 is multiplied as three products of TF32
    by_flops = batch * heads * tokens * 4 * channels * values * passes / limits["tf32_flops_per_s"]
    return max((by_bytes * 1e3, "bytes"), (by_flops * 1e3, "flops"))


def print_case(case: dict[str, Any]) -> None:
    """Print one case's line: each contender's median, and how close the Triton backend is to the bound."""
    medians = [
        f"{name} {row['ms'][1]:.3f}" if "ms" in row else f"{name} none" for name, row in case["contenders"].items()
    ]
    direction = "fwd+bwd" if case["backward"] else "fwd"
    fraction = f"{100 * case['fraction']:.0f} % of the {case['bound']} bound" if case["fraction"] else ""
    print(f"{case['sizes']!s:34} {case['dtype']:8} {direction:8} ms: {', '.join(medians)}; {fraction}")


def name_of(dtype: torch.dtype) -> str:
    """Return 'float16' and the like."""
    return str(dtype).removeprefix("torch.")


def run_suite(started: float) -> dict[str, Any]:
    """Compare, then time; return everything for the JSON file."""
    suite = [(b, h, n, n, d, d) for b, h, n, d in SUITE]
    checks = []
    for sizes in [*ODD, *suite]:
        for dtype in LIMITS:
            checks.append(check(sizes, dtype, "cuda"))
            if checks[-1]["reason"]:
                print(f"WRONG {sizes} {name_of(dtype)}: {checks[-1]['reason']}")
            if checks[-1]["reason"].startswith("fell back"):
                return {"checks": checks, "cases": []}  # it warns only once: what follows could not be told apart
    wrong = {(row["sizes"], row["dtype"]) for row in checks if row["reason"]}
    limits = measure_limits()
    print(f"{len(checks) - len(wrong)} of {len(checks)} cases right; {json.dumps(limits)}")
    cases = []
    for sizes in suite:
        for dtype in LIMITS:
            for backward in (False, True):
                elapsed = time.monotonic() - started
                if (sizes, name_of(dtype)) in wrong or elapsed > STOP_AFTER_S:
                    continue
                rows = time_case(sizes, dtype, backward, elapsed)
                bound, kind = bound_ms(sizes, dtype, backward, limits)
                fraction = bound / rows["triton"]["ms"][1] if "ms" in rows["triton"] else None
                case = {"sizes": sizes, "dtype": name_of(dtype), "backward": backward, "contenders": rows}
                cases.append({**case, "bound": kind, "bound_ms": bound, "fraction": fraction})
                print_case(cases[-1])
    return {"checks": checks, "limits": limits, "cases": cases}


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Check and time the operator on this machine's GPU.")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    out = parser.parse_args(arguments).out
    if not torch.cuda.is_available():
        print("gpu_check needs a GPU, and PyTorch sees none")
        return 2
    import triton

    started = time.monotonic()
    machine = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }
    print(json.dumps(machine))
    result = {**machine, **run_suite(started), "seconds": time.monotonic() - started}
    out.write_text(json.dumps(result, indent=1))
    return 1 if any(row["reason"] for row in result["checks"]) else 0


if __name__ == "__main__":
    sys.exit(main())
