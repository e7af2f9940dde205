import argparse
import subprocess
import sys

import pytest

import polaformer.cli
from polaformer.cli.predict import MOST_TILES
from polaformer_cli.commands import COMMANDS
from polaformer_cli.main import main


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail with status 2, and return its one line on stderr."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["fit", "--help"], ["fti"], ["predict", "--tpo", "3"]]
)
def test_help_version_and_mistyped_options_do_not_import_torch(arguments: list[str]) -> None:
    code = f"import sys, polaformer_cli; polaformer_cli.main({arguments!r}); print('torch' in sys.modules, 'polaformer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("arguments", [[], ["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_fits_one_screen(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 10 < len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("examples:") for line in lines)


def test_help_of_options_says_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--help"])
    assert "weights of a pola_* model to start from" in capsys.readouterr().out
    main(["predict", "--help"])
    assert f"first {MOST_TILES} images" in " ".join(capsys.readouterr().out.split())


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"polaformer {polaformer.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fti"], "polaformer: error: unknown command fti; did you mean fit?"),
        (["--vesion"], "polaformer: error: unknown option --vesion; did you mean --version?"),
        (["xyz"], "polaformer: error: unknown command xyz; polaformer --help lists them"),
        (["fit", "--epoch", "3"], "polaformer fit: error: unknown option --epoch; did you mean --epochs?"),
        (["fit", "--epoch=3"], "polaformer fit: error: unknown option --epoch; did you mean --epochs?"),
        (["fit", "--lr"], "polaformer fit: error: --lr needs a value"),
        (["fit", "--optim.lr"], "polaformer fit: error: --optim.lr needs a value"),
        (
            ["fit", "photos"],
            'polaformer fit: error: unexpected argument "photos"; a folder of images is given as --data photos',
        ),
        (["predict", "a.jpg"], "polaformer predict: error: the following arguments are required: --checkpoint"),
        (
            ["predict", "a.jpg", "--checkpoint", "r", "--top", "0"],
            'polaformer predict: error: --top must be a whole number of at least 1, got "0"',
        ),
        (
            ["predict", "a.jpg", "--checkpoint", "r", "--jsn"],
            "polaformer predict: error: unknown option --jsn; did you mean --json?",
        ),
        (["demo", "--qqq"], "polaformer demo: error: unknown option --qqq; --help lists the options"),
    ],
)
def test_usage_error__one_line_with_the_nearest_right_word(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_line(capsys, *arguments) == line


def raising(error: BaseException):
    def run_command(args: argparse.Namespace) -> int:
        raise error

    return run_command


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("optim.lr must be positive,\n  got -3"), "error: optim.lr must be positive, got -3"),
        (FileNotFoundError(2, "No such file or directory", "photos"), "error: No such file or directory: photos"),
        (FileNotFoundError("there is no folder photos"), "error: there is no folder photos"),
        (ImportError("onnx is needed"), "error: onnx is needed"),
        (
            ModuleNotFoundError("No module named 'pytorch_lightning'", name="pytorch_lightning"),
            'error: pytorch_lightning is missing: pip install "polaformer[train]"',
        ),
    ],
)
def test_user_mistake__one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(polaformer.cli, "run_command", raising(error))
    assert error_line(capsys, "check-data", "photos") == f"polaformer check-data: {line}"


def test_user_mistake__traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polaformer.cli, "run_command", raising(ValueError("from below")))
    with pytest.raises(ValueError, match="from below"):
        main(["check-data", "photos", "--traceback"])


@pytest.mark.parametrize("error", [AssertionError("bug"), TypeError("bug"), ModuleNotFoundError("bug", name="numpy.x")])
def test_bug_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polaformer.cli, "run_command", raising(error))
    with pytest.raises(type(error), match="bug"):
        main(["check-data", "photos"])


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(polaformer.cli, "run_command", raising(KeyboardInterrupt()))
    assert main(["check-data", "photos"]) == 130
    assert capsys.readouterr().err == "polaformer check-data: interrupted\n"


def test_reader_that_leaves_is_no_error() -> None:
    code = """
import sys, types, polaformer_cli

def run_command(args):
    while True:
        sys.stdout.write("a line of a long result\\n")

sys.modules["polaformer"] = types.ModuleType("polaformer")
sys.modules["polaformer.cli"] = types.SimpleNamespace(run_command=run_command)
sys.exit(polaformer_cli.main(["check-data", "photos"]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    _, errors = process.communicate(timeout=120)
    assert errors == ""
    assert process.returncode == 1
