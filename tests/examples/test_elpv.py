import runpy
from collections import Counter
from pathlib import Path

import pytest
from helpers.images import noise

from polaformer.data.folders import scan_folder

SCRIPT = Path(__file__).parents[2] / "examples" / "elpv.py"
ELPV = runpy.run_path(str(SCRIPT))


def _write_package(folder: Path) -> Path:
    """Made-up cells in the package's form, 16 of each type and probability."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(128):
        probability = (0.0, 1 / 3, 2 / 3, 1.0)[number // 32]
        kind = ("mono", "poly")[number % 2]
        name = f"images/cell{number:04d}.png"
        noise(9, 7, number).convert("L").save(folder / name)
        lines.append(f"{name}  {probability!r:<20} {kind}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_folders_are_stratified_over_type_and_probability(tmp_path):
    counts = ELPV["write_folders"](_write_package(tmp_path / "package"), tmp_path / "elpv")
    assert counts == {"train/functional": 48, "train/defective": 48, "val/functional": 16, "val/defective": 16}
    held = Counter()
    for path in (tmp_path / "elpv" / "val").glob("*/*.png"):
        kind, number = path.stem.split("_cell")
        assert path.parent.name == ("functional" if int(number) < 64 else "defective")
        held[kind, int(number) // 32] += 1
    assert set(held.values()) == {4}
    split = scan_folder(tmp_path / "elpv")
    assert (split.class_names, len(split.train), len(split.val)) == (["defective", "functional"], 96, 32)
    with pytest.raises(ValueError, match="OUT must be a new folder"):
        ELPV["write_folders"](tmp_path / "package", tmp_path / "elpv")


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setitem(ELPV["find_package"].__globals__, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install elpv-dataset"):
        ELPV["find_package"]()


@pytest.mark.slow
def test_the_real_photographs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("elpv_dataset")
    out = tmp_path / "elpv"
    monkeypatch.setattr("sys.argv", ["elpv.py", str(out)])
    ELPV["main"]()
    counts = {line.split()[1]: int(line.split()[0]) for line in capsys.readouterr().out.splitlines()}
    assert counts == {  # a quarter of 588 + 920 + 117 + 178 functional and of 56 + 50 + 313 + 402 defective cells
        f"{out}/train/defective": 617,
        f"{out}/train/functional": 1353,
        f"{out}/val/defective": 204,
        f"{out}/val/functional": 450,
    }
    split = scan_folder(out)
    assert split.val.load(0, 1).size == (300, 300)
