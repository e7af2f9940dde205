"""Runs every block of docs/quickstart.md, in its order, in one empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w+)( install)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_block(language: str, code: str, folder: Path) -> str:
    """Run a shell or Python block with the commands of this environment, and return what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "sh" else [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_quickstart(tmp_path: Path) -> None:
    blocks = FENCE.findall((DOCS / "quickstart.md").read_text(encoding="utf-8"))
    assert [install for _, install, _ in blocks].count(" install") == 1
    printed = ""
    for language, install, code in blocks:
        if language == "text":
            assert code == printed  # what the page says the block before prints
        elif not install:
            printed = run_block(language, code, tmp_path)
    assert len(list(tmp_path.glob("photos/*/*.jpg"))) == 10
    files = {path.name for path in (tmp_path / "runs" / "first").iterdir()}
    assert {"recipe.yaml", "metrics.csv", "curves.png", "best.safetensors", "last.ckpt"} <= files
    assert len((tmp_path / "runs" / "first" / "metrics.csv").read_text().splitlines()) == 1 + 14
