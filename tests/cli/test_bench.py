import argparse
import json
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image

from polaformer.bench import CheckFailure, checking, network, operators
from polaformer.cli.bench import command_line
from polaformer_cli import main
from polaformer_cli.commands import COMMANDS


@pytest.fixture(autouse=True)
def run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th function takes n seconds and is run once, so that nothing depends on the machine."""

    def time_in_turn(functions: dict, rounds: int, device: torch.device) -> dict[str, list[float]]:
        for function in functions.values():
            function()
        return {name: [float(number)] * rounds for number, name in enumerate(functions, start=1)}

    monkeypatch.setattr(operators, "time_in_turn", time_in_turn)
    monkeypatch.setattr(network, "time_in_turn", time_in_turn)


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("polaformer bench: error: ")


def test_table_and_where_the_operator_wins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tokens", "29", "13", "--heads", "3", "--channels", "5", "--threads", "1"]) == 0
    captured = capsys.readouterr()
    machine, versions, _, title, _, _, *rows = captured.out.splitlines()
    assert machine.endswith("cores, 1 threads")
    assert versions.startswith("polaformer ")
    assert title.startswith("float32 on cpu, batch 1, 3 heads of 5 channels; ratio: time over that of the operator")
    assert [row.split()[0] for row in rows[:12]] == ["13"] * 6 + ["29"] * 6
    # Seconds of the third contender, 13 tokens a call.
    assert rows[2].split()[1:10] == ["forward", "softmax", "3,000", "3,000", "3,000", "3.00", "3.00", "3.00", "4"]
    assert rows[-2:] == [
        f"float32 on cpu, {name}: faster than softmax from the fewest measured, 13 tokens on"
        for name in ("forward", "forward + backward")
    ]
    assert captured.err.splitlines() == [f"measuring {tokens} tokens, float32 on cpu ..." for tokens in (13, 29)]


def test_record_names_machine_versions_sizes_and_its_command(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    asked = ["bench", "--tokens", "13", "--dtype", "float32", "bfloat16", "--backend", "auto", "reference"]
    assert main([*asked, "--threads", "1", "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    assert {"cpu", "cores", "threads", "gpus", "versions", "date"} <= record["machine"].keys()
    assert {"polaformer", "torch", "timm", "python", "cuda"} == record["machine"]["versions"].keys()
    assert len(record["operator"]) == 2 * 2 * 4
    entry = record["operator"][-1]
    assert {name: entry[name] for name in ("contender", "pass_name", "tokens", "batch_size", "dtype", "device")} == {
        "contender": "softmax",
        "pass_name": "forward + backward",
        "tokens": 13,
        "batch_size": 1,
        "dtype": "bfloat16",
        "device": "cpu",
    }
    assert entry["seconds"] == {"minimum": 4.0, "median": 4.0, "maximum": 4.0}
    assert {"ratio", "tokens_per_second", "peak_bytes", "error", "heads", "channels"} <= entry.keys()
    assert len(record["crossovers"]) == 4
    assert record["crossovers"][0]["tokens"] == 13
    # The command gives the same again when it is run.
    again = tmp_path / "again.json"
    assert main([*shlex.split(record["command"])[1:], "--output", str(again)]) == 0
    assert json.loads(again.read_text())["command"] == record["command"]


def test_models__latency_and_throughput_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench.json"
    asked = ["bench", "--model", "pola_pvt_nano", "test_vit", "--batch-size", "3", "--image-size", "64", "32"]
    assert main([*asked, "--output", str(output)]) == 0
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("pola_pvt_nano", "test_vit"))
    ]
    assert [row[:4] for row in rows] == [
        [name, "64x32", batch, pass_name]
        for name in ("pola_pvt_nano", "test_vit")
        for batch, pass_name in (("1", "forward"), ("3", "forward"), ("3", "training"))
    ]
    record = json.loads(output.read_text())
    entry = record["models"][1]
    assert (entry["model"], entry["image_size"], entry["dtype"], entry["device"]) == (
        "test_vit",
        [64, 32],
        "float32",
        "cpu",
    )
    assert (entry["latency"]["batch_size"], entry["throughput"]["batch_size"]) == (1, 3)
    assert (entry["latency"]["images_per_second"], entry["throughput"]["images_per_second"]) == (0.5, 1.5)
    assert "--model pola_pvt_nano test_vit --image-size 64 32 --batch-size 3" in record["command"]


def test_picture(tmp_path: Path) -> None:
    assert main(["bench", "--tokens", "13", "29", "--picture", str(tmp_path / "bench.png")]) == 0
    with Image.open(tmp_path / "bench.png") as image:
        assert image.format == "PNG"


def test_rival_that_fails_its_check__not_timed_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = checking.check

    def check(contender, inputs):
        if contender.name == "softmax":
            raise CheckFailure("softmax must agree with float64")
        return exact(contender, inputs)

    monkeypatch.setattr(operators, "check", check)
    output = tmp_path / "bench.json"
    assert main(["bench", "--tokens", "13", "--output", str(output)]) == 1
    captured = capsys.readouterr()
    assert "softmax" not in captured.out
    assert captured.err.splitlines()[-1] == "polaformer bench: softmax must agree with float64"
    record = json.loads(output.read_text())
    assert record["refused"] == ["softmax must agree with float64"]
    assert {entry["contender"] for entry in record["operator"]} == {"operator", "published formula"}


@pytest.mark.parametrize("asked", [[], ["--model", "pola_pvt_nano"]], ids=["operator", "model"])
def test_wrong_operator__nothing_is_timed_and_exit_1(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checking, "BOUNDS", {torch.float32: 0.0})
    monkeypatch.setattr(network, "BOUNDS", {torch.float32: 0.0})
    assert main(["bench", *asked]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    _, line = captured.err.splitlines()
    assert "must agree with float64 before it is timed" in line


def test_threads_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    assert main(["bench", "--tokens", "13", "--threads", str(before + 1)]) == 0
    assert f", {before + 1} threads" in capsys.readouterr().out
    assert torch.get_num_threads() == before


def test_command_line__quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    args = COMMANDS["bench"].parser().parse_args(["--model", "a b", "--device", "cpu"])
    args.batch_size, args.image_size = 8, None
    assert isinstance(args, argparse.Namespace)
    assert "--model 'a b' --batch-size 8" in command_line(args)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--rounds", "3"], "--rounds must be at least 7, got 3"),
        (["--device", "gpu"], "--device must be cpu or a CUDA device that is there, got gpu"),
        (["--device", "cuda:97"], "--device must be cpu or a CUDA device that is there, got cuda:97"),
        (["--image-size", "64"], "--image-size must be given with --model"),
        (
            ["--model", "resnet18", "--tokens", "3"],
            "--model must be given without --tokens and --picture, which are the operator's",
        ),
        (
            ["--model", "pola_pvt_tny"],
            "--model must be a timm model, got pola_pvt_tny; did you mean pola_pvt_tiny or pola_pvt_nano or pola_deit_tiny?",
        ),
        (
            ["--output", "/none/b.json"],
            "--output must be a file in an existing folder that can be written to, got '/none/b.json'",
        ),
    ],
)
def test_mistakes__one_line_at_once(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_line(capsys, *arguments) == line
