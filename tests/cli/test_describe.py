import json
from pathlib import Path

import pytest
import timm

from polaformer.models.weights import WeightsInfo, save_weights
from polaformer_cli import main


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["describe", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("polaformer describe: error: ")


def describe(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["describe", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "pola_pvt_nano", "--image-size", "64", "--model-args", "{attn_type: LLSS}"]) == 0
    title, _, header, *rows = capsys.readouterr().out.splitlines()
    assert title == "pola_pvt_nano, 64x64 px, batch 1"
    assert header.split() == ["part", "attention", "tokens", "keys", "parameters", "multiply-adds", "activations"]
    words = {row.split()[0]: row.split() for row in rows if row}
    assert words["block1"][1:5] == ["polarity-aware", "linear", "256", "256"]
    assert words["block3"][1:4] == ["softmax", "16", "4"]
    assert words["patch_embed1"][1:4] == ["-", "-", "-"]
    assert len(words["total"]) == 1 + 3 * 2


def test_json__size_and_batch(capsys: pytest.CaptureFixture[str]) -> None:
    own = describe(capsys, "pola_pvt_nano")
    assert (own["model"], own["image_size"], own["batch_size"]) == ("pola_pvt_nano", [32, 32], 1)
    larger = describe(capsys, "pola_pvt_nano", "--image-size", "64", "32", "--batch-size", "3")
    assert (larger["image_size"], larger["batch_size"]) == ([64, 32], 3)
    tokens = {part["name"]: part["tokens"] for part in larger["parts"]}
    assert [tokens[f"block{stage}"] for stage in (1, 2, 3, 4)] == [128, 32, 8, 2]
    assert larger["multiply_adds"] == pytest.approx(
        3 * 2 * own["multiply_adds"], rel=0.05
    )  # the classifier is the rest
    # Built for that size, as training does: its position tables are larger.
    assert larger["parameters"] > own["parameters"]


def test_trained_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = timm.create_model("pola_pvt_nano", num_classes=3, in_chans=1)
    info = WeightsInfo("pola_pvt_nano", {}, ["a", "b", "c"], 32, 1, [0.5], [0.5], "bicubic", 1.0, "0")
    save_weights(tmp_path / "best.safetensors", model, info)
    seen = describe(capsys, str(tmp_path / "best.safetensors"))
    assert seen["image_size"] == [32, 32]
    assert seen["parameters"] == sum(p.numel() for p in model.parameters())
    line = error_line(capsys, str(tmp_path / "best.safetensors"), "--model-args", "{alpha: 3}")
    assert line == "--model-args must be left out with a trained model, which has its own, got {'alpha': 3}"


def test_operator_that_is_not_counted__no_total_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "sequencer2d_s", "--json"]) == 1
    captured = capsys.readouterr()
    seen = json.loads(captured.out)
    assert seen["multiply_adds"] is None
    assert list(seen["uncounted"]) == ["aten::mkldnn_rnn_layer"]
    assert captured.err.startswith(
        "polaformer describe: warning: no total: nothing is known of what aten::mkldnn_rnn_layer"
    )


def test_mistakes__one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(capsys, "pola_pvt_tny")
    assert line == (
        "MODEL must be a timm model, or a run folder or a file of one, got pola_pvt_tny; "
        "did you mean pola_pvt_tiny or pola_pvt_nano or pola_deit_tiny?"
    )
    assert error_line(capsys, "!").endswith("got !; timm.list_models() names them")
    assert error_line(capsys, "resnet18", "--image-size", "1", "2", "3") == (
        "--image-size must be one number or height and width, got 1 2 3"
    )
    assert error_line(capsys, "resnet18", "--model-args", "x").startswith("--model-args must be a mapping such as")
    assert error_line(capsys, "resnet18", "--model-args", "{x: 1}").startswith(
        "--model-args must be arguments of resnet18, got {'x': 1}: "
    )
    assert error_line(capsys, "levit_128", "--image-size", "97").startswith(
        "--image-size must be one that levit_128 takes, got 97 97: "
    )
