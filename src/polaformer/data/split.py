"""Training and held-out images of one class table, and a held-out choice that depends on names alone."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from PIL import Image

from .names import printable


class LabelledImages(Protocol):
    """Images with class numbers; must pickle small, since loader processes receive it."""

    @property
    def labels(self) -> np.ndarray:
        """Class number of each image, int64 (N,)."""
        ...

    def __len__(self) -> int: ...

    def path(self, index: int) -> str:
        """Path, or another name, of one image."""
        ...

    def load(self, index: int, in_chans: int) -> Image.Image:
        """One image in mode "RGB" (in_chans 3) or "L" (1); ImageError where that cannot be had."""
        ...


@dataclass
class DataSplit:
    """The images of one data set by role.

    Args:
        class_names: name of each class number.
        train: images to train on; empty where everything is held out.
        val: held-out images.
        test: a further held-out set, where there is one.
        notes: what the user should know, one line each.
        ignored: files passed over because of their ending, counted by ending.
        first_ignored: path of the first of each ending.
    """

    class_names: list[str]
    train: LabelledImages
    val: LabelledImages
    test: LabelledImages | None = None
    notes: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    first_ignored: dict[str, str] = field(default_factory=dict)


def class_table(split: DataSplit, most: int = 20) -> str:
    """Number, name and images of each class as plain text.

    Args:
        split: the images.
        most: classes shown; the rest are counted in one line.

    Returns:
        Lines without a final newline.
    """
    roles = {"train": split.train, "val": split.val, "test": split.test}
    counts = {
        role: np.bincount(images.labels, minlength=len(split.class_names))
        for role, images in roles.items()
        if images is not None
    }
    names = [printable(name) for name in split.class_names[:most]]
    width = max(map(len, ["class", *names]))
    lines = ["".join([f"{'':>5}  {'class':<{width}}", *(f"{role:>9}" for role in counts)])]
    for label, name in enumerate(names):
        lines.append("".join([f"{label:>5}  {name:<{width}}", *(f"{count[label]:>9}" for count in counts.values())]))
    if len(split.class_names) > most:
        lines.append(f"       ... and {len(split.class_names) - most} more classes")
    lines.append("".join([f"{'':>5}  {'all':<{width}}", *(f"{count.sum():>9}" for count in counts.values())]))
    return "\n".join(lines)


def held_out(names: Sequence[str], labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Choose the images of each class that are held out.

    Within a class, images are ordered by SHA-256 of "seed/name" and the first round(fraction · n) are held out, at
    least one and at most n - 1 of n ≥ 2. A class of one image stays in training. The choice is thus a pure function of
    seed and names: neither the order of listing nor the place of the folder matters, and a few new files move few
    others.

    Args:
        names: relative names with forward slashes, unique.
        labels: class of each name, integers (N,).
        fraction: share held out, in (0, 1]; 1 holds out everything, for a folder that is only evaluated.
        seed: any integer.

    Returns:
        Held out or not, bool (N,).

    Raises:
        ValueError: fraction is not in (0, 1].
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"val_fraction must be above 0 and at most 1, got {fraction}")
    if fraction == 1.0:
        return np.ones(len(labels), dtype=bool)
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members: list[int] = np.flatnonzero(labels == label).tolist()
        if len(members) > 1:
            count = min(max(round(fraction * len(members)), 1), len(members) - 1)
            chosen[sorted(members, key=lambda index: _rank(names[index], seed))[:count]] = True
    return chosen


def _rank(name: str, seed: int) -> bytes:
    # File systems differ in how they spell accented letters; NFC makes them one.
    text = f"{seed}/{unicodedata.normalize('NFC', name)}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
