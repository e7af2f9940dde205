"""Turn the ELPV photographs of solar cells into a folder of images with two classes.

    pip install elpv-dataset
    python examples/elpv.py elpv
    polaformer check-data elpv

The package holds 2,624 electroluminescence photographs, 300x300 grey, each with a cell type (mono- or polycrystalline)
and a defect probability that condenses two questions to an expert, functional or not and sure or not: 0, 1/3, 2/3, 1.
The label is the answer to the first question, which a threshold of 0.5 gives back: 2/3 is "defective, not sure". A
quarter of every combination of type and probability becomes val/, which is the share the data's authors hold out.

The photographs are under CC BY-NC-SA 4.0 (no commercial use); so are the folders made here. Cite: Deitsch et al.,
"Automatic classification of defective photovoltaic module cells in electroluminescence images", Solar Energy 185, 2019.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from polaformer.data.split import held_out

DEFECTIVE_FROM = 0.5
CLASS_NAMES = ("functional", "defective")


def find_package() -> Path:
    """The folder of labels.csv and images/ inside the installed package."""
    spec = find_spec("elpv_dataset")
    if spec is None or spec.origin is None:
        raise SystemExit("the photographs come from a package of their own: pip install elpv-dataset")
    return Path(spec.origin).parent / "data"


def write_folders(source: Path, target: Path, val_fraction: float = 0.25, seed: int = 0) -> dict[str, int]:
    """Copy the photographs to target/{train,val}/{functional,defective}/.

    Args:
        source: folder with labels.csv (lines of image, probability, type) and the images.
        target: folder to make; must not exist.
        val_fraction: share of each combination of type and probability that becomes val/.
        seed: of that choice.

    Returns:
        Number of images by folder.

    Raises:
        ValueError: target exists.
    """
    if target.exists():
        raise ValueError(f"OUT must be a new folder, got {target}, which exists")
    rows = [line.split() for line in (source / "labels.csv").read_text().splitlines() if line.strip()]
    names = [name for name, _, _ in rows]
    _, strata = np.unique([f"{kind} {probability}" for _, probability, kind in rows], return_inverse=True)
    counts: dict[str, int] = {}
    for (name, probability, kind), is_val in zip(rows, held_out(names, strata, val_fraction, seed)):
        class_name = CLASS_NAMES[float(probability) >= DEFECTIVE_FROM]
        folder = f"{'val' if is_val else 'train'}/{class_name}"
        counts[folder] = counts.get(folder, 0) + 1
        (target / folder).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / folder / f"{kind}_{Path(name).name}")
    return counts


def main() -> None:
    """Read the command line and write the folders."""
    summary, *details = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description=summary, epilog="\n".join(details), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    parser.add_argument("--val-fraction", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        counts = write_folders(find_package(), arguments.out, arguments.val_fraction, arguments.seed)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    for folder, count in sorted(counts.items()):
        sys.stdout.write(f"{count:6} {arguments.out / folder}\n")


if __name__ == "__main__":
    main()
