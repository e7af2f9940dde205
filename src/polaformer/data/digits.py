"""scikit-learn's handwritten digits: 1,797 scans of 8x8 pixels in ten classes, inside that package.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998;
the copy is the test set of that collection.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from .split import DataSplit, held_out

DIGITS = "digits"  # what `data.path` calls them; a folder of that name is ./digits
GREY_LEVELS = 16  # the scans count ink in blocks of 4x4 pixels


class DigitList:
    """Digits with labels; the counterpart of `ImageList`.

    Args:
        scans: grey values 0..255, uint8 (N, 8, 8).
        labels: the digit, integers (N,).
        numbers: place of each scan in scikit-learn's data, integers (N,).
    """

    def __init__(self, scans: np.ndarray, labels: np.ndarray, numbers: np.ndarray) -> None:
        self.scans = scans
        self.labels = np.asarray(labels, dtype=np.int64)
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """A name for one scan: its digit and its place in scikit-learn's data."""
        return f"digits/{self.labels[index]}/{self.numbers[index]:04d}"

    def load(self, index: int, in_chans: int) -> Image.Image:
        """One scan as an 8x8 picture, white ink on black, mode "L" or "RGB"."""
        return Image.fromarray(self.scans[index]).convert("L" if in_chans == 1 else "RGB")


def load_digits_split(val_fraction: float = 0.2, split_seed: int = 0) -> DataSplit:
    """The digits with a stratified held-out part (a fifth by default), the same on every machine.

    Args:
        val_fraction: share of each digit held out, in (0, 1].
        split_seed: seed of the split.

    Returns:
        Class names '0' to '9', training and held-out scans.

    Raises:
        ImportError: scikit-learn is missing; the message names the extra.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install 'polaformer[train]'") from error
    scans, labels = load_digits(return_X_y=True)
    scans = np.rint(scans.reshape(-1, 8, 8) * (255.0 / GREY_LEVELS)).astype(np.uint8)
    numbers = np.arange(len(labels))
    names = [f"{label}/{number:04d}" for label, number in zip(labels, numbers)]
    chosen = held_out(names, labels, val_fraction, split_seed)
    train, val = (DigitList(scans[part], labels[part], numbers[part]) for part in (~chosen, chosen))
    return DataSplit([str(digit) for digit in range(10)], train, val)
