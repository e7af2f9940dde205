import io
import sys

import pytest

from polaformer_cli.console import complain, nearest, say


def test_say__only_the_first_process_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    say("alone")
    monkeypatch.setenv("LOCAL_RANK", "1")
    say("second of two that Lightning started")
    monkeypatch.setenv("RANK", "0")
    say("first under torchrun")
    assert capsys.readouterr().out == "alone\nfirst under torchrun\n"


def test_say__a_narrow_stdout_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    say("caf\u00e9")
    assert stdout.buffer.getvalue() == b"caf\\xe9\n"


def test_complain__one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("polaformer fit", "first,\n\n   second")
    assert capsys.readouterr().err == "polaformer fit: first, second\n"


def test_nearest() -> None:
    assert nearest("fitt", ["fit", "predict"]) == "; did you mean fit?"
    assert nearest("zzz", ["fit", "predict"]) == ""
    assert nearest("--img-size", ["--batch-size"], likeness=0.8) == ""
