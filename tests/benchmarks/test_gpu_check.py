"""The GPU check's parts that need no GPU: the published formula, the comparison, the bound, the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.quadratic import quadratic_attention

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIMITS = {"bytes_per_s": 1e12, "tf32_flops_per_s": 1e14}


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_check  # pyright: ignore[reportMissingImports]

    return gpu_check


def test_published_formula_is_the_quadratic_definition(gpu_check):
    inputs, _ = gpu_check.make_case((2, 3, 5, 11, 7, 9), torch.float64, "cpu")
    q, k, v, power = (x.double() for x in inputs)
    output = gpu_check.published_attention(q, k, v, power)
    torch.testing.assert_close(output, quadratic_attention(q, k, v, power[:, None]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_right_backend_passes(gpu_check, dtype):
    row = gpu_check.check((2, 3, 5, 11, 7, 9), dtype, "cpu", "reference")
    assert row["reason"] == ""
    assert set(row["errors"]) == {"output", "q", "k", "v", "power"}


def test_a_wrong_backend_does_not(gpu_check, monkeypatch):
    right = gpu_check.pola_attention
    monkeypatch.setattr(
        gpu_check,
        "pola_attention",
        lambda q, k, v, p, backend: right(q, k, v, p, backend=backend) + (q.dtype != torch.float64),
    )
    row = gpu_check.check((2, 3, 5, 11, 7, 9), torch.float32, "cpu", "reference")
    assert row["reason"].startswith("output: error ")


def test_a_backend_that_falls_back_does_not(gpu_check, monkeypatch):
    def warn(*inputs, **options):
        import warnings

        warnings.warn("no Triton kernel runs", stacklevel=2)

    monkeypatch.setattr(gpu_check, "pola_attention", warn)
    row = gpu_check.check((2, 3, 5, 11, 7, 9), torch.float32, "cpu", "reference")
    assert row["reason"] == "fell back: no Triton kernel runs"


def test_bound_counts_bytes_and_operations(gpu_check):
    # 6 heads; q 5·7, k 11·7, v 11·9, output 5·9 = 256 numbers of 2 bytes.
    assert gpu_check.bound_ms((2, 3, 5, 11, 7, 9), torch.float16, False, LIMITS) == (6 * 256 * 2 / 1e9, "bytes")
    # Backward: q, k, v read and written, grad read: 2·211 + 45.
    assert gpu_check.bound_ms((2, 3, 5, 11, 7, 9), torch.float16, True, LIMITS)[0] == 6 * (256 + 467) * 2 / 1e9
    time, kind = gpu_check.bound_ms((2, 3, 5, 11, 70, 90), torch.float32, False, LIMITS)
    assert kind == "flops"
    assert time == pytest.approx(6 * 16 * 4 * 70 * 90 * 3 / 1e11)


def test_a_case_is_one_line(gpu_check, capsys):
    contenders = {"triton": {"ms": (0.1, 0.2, 0.3), "memory": 5}, "softmax": {"reason": "no kernel"}}
    gpu_check.print_case(
        {
            "sizes": (1, 2),
            "dtype": "float16",
            "backward": True,
            "contenders": contenders,
            "bound": "bytes",
            "fraction": 0.5,
        }
    )
    line = capsys.readouterr().out
    assert "triton 0.200, softmax none; 50 % of the bytes bound" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("backward", [False, True])
def test_contenders_take_turns_and_one_that_fails_gives_its_reason(gpu_check, monkeypatch, backward):
    turns = []

    def contender(name):
        def attend(q, k, v, power):
            turns.append(name)
            if name == "broken":
                raise RuntimeError("no kernel\nand more")
            return q * power[:, None] + k + v

        return attend

    make_case = gpu_check.make_case
    monkeypatch.setattr(gpu_check, "make_case", lambda *arguments: make_case(*arguments[:-1], "cpu"))
    monkeypatch.setattr(
        gpu_check, "contenders", lambda elapsed: {name: contender(name) for name in ("a", "broken", "b")}
    )
    monkeypatch.setattr(gpu_check, "sample", lambda run, repeats: float(run() is not None) * 3.0)
    for name, value in (("synchronize", None), ("reset_peak_memory_stats", None), ("memory_allocated", 3)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10)
    rows = gpu_check.time_case((2, 3, 7, 7, 5, 5), torch.float32, backward, 0.0)
    assert rows["a"] == rows["b"] == {"memory": 7, "ms": (3.0, 3.0, 3.0)}
    assert rows["broken"] == {"reason": "no kernel"}
    assert turns[-6:] == ["a", "b"] * 3


def test_the_suite_is_timed_and_what_is_wrong_is_not(gpu_check, monkeypatch):
    def check(sizes, dtype, device):
        wrong = dtype is torch.float32
        return {"sizes": sizes, "dtype": gpu_check.name_of(dtype), "errors": {}, "reason": "wrong" if wrong else ""}

    rows = {"triton": {"ms": (1.0, 2.0, 3.0)}}
    monkeypatch.setattr(gpu_check, "check", check)
    monkeypatch.setattr(gpu_check, "measure_limits", lambda: LIMITS)
    monkeypatch.setattr(gpu_check, "time_case", lambda *arguments: rows)
    result = gpu_check.run_suite(gpu_check.time.monotonic())
    assert len(result["cases"]) == len(gpu_check.SUITE) * 2 * 2
    assert {case["dtype"] for case in result["cases"]} == {"float16", "bfloat16"}
    json.dumps(result)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--out", str(tmp_path / "result.json")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == "gpu_check needs a GPU, and PyTorch sees none\n"
    assert list(tmp_path.iterdir()) == []
