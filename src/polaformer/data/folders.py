"""Folders of images with one sub-folder a class: what is trained on, what is held out, and which class is which number.

Two layouts are understood:

    PATH/train/CLASS/**/image    PATH/val/CLASS/**/image    [PATH/test/CLASS/**/image]
    PATH/CLASS/**/image          split by `val_fraction` and `split_seed`

The first holds where PATH has train/ and beside it val/ (or valid/, validation/), test/, or no other folder at all, so
that in PATH/train, PATH/car, PATH/bus "train" is a class. Without a val folder, test/ is the held-out set; without
either, train/ is split. Names of classes and their order (plain sorted) come from the training folder and are the
numbers' only meaning: another set is matched to them by name. Names starting with "." and __MACOSX are skipped;
links are followed.
"""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from .images import IMAGE_EXTENSIONS, is_image_name, load_image
from .names import counted, printable
from .packed import PackedStrings
from .split import DataSplit, held_out

HELD_OUT_NAMES = ("val", "valid", "validation")


class ImageList:
    """Image files with labels, in memory that loader processes can share.

    Args:
        root: the folder the names are relative to.
        names: relative names with forward slashes.
        labels: class number of each, integers (N,).
    """

    def __init__(self, root: str | os.PathLike[str], names: Sequence[str], labels: np.ndarray) -> None:
        self.root = os.fspath(root)
        self.names = PackedStrings(names)
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        """Path of one image."""
        return os.path.join(self.root, *self.names[index].split("/"))

    def load(self, index: int, in_chans: int) -> Image.Image:
        """Read one image, see `load_image`."""
        return load_image(self.path(index), in_chans)


def scan_folder(
    path: str | os.PathLike[str], val_fraction: float = 0.2, split_seed: int = 0, class_names: list[str] | None = None
) -> DataSplit:
    """List a folder's images as `read_folder` does and warn of what it notes.

    Args:
        path: the folder.
        val_fraction: share of each class held out where there is no held-out folder; 1.0 holds out all.
        split_seed: seed of that split.
        class_names: the class table to keep to, of a trained model; null takes it from the training folder.

    Returns:
        Class names, training and held-out images.

    Raises:
        ValueError: see `read_folder`.
    """
    split = read_folder(path, val_fraction, split_seed, class_names)
    for note in split.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    return split


def read_folder(
    path: str | os.PathLike[str], val_fraction: float = 0.2, split_seed: int = 0, class_names: list[str] | None = None
) -> DataSplit:
    """List a folder's images without warning; the notes are in the result. Arguments as in `scan_folder`.

    Raises:
        ValueError: path is no folder, or one below it cannot be listed; there are images but no class folders; no
            images; fewer than two classes and no class_names; a class's name cannot be written down; a set holds a
            class that the class table lacks; two held-out folders.
    """
    root = Path(path)
    if not os.path.isdir(root):  # Path.is_dir() raises for a name that is too long
        link = os.path.islink(root) and not os.path.exists(root)
        state = "is a link that leads nowhere" if link else "is a file" if os.path.exists(root) else "does not exist"
        raise ValueError(f"path must be a folder of images, got {str(root)!r}, which {state}")
    sets = _named_sets(root, class_names is not None)
    if not sets:
        found = _Found(root)
        table = _class_table(found, class_names)
        chosen = held_out(found.names, found.labels(table), val_fraction, split_seed)
        split = DataSplit(table, found.images(table, ~chosen), found.images(table, chosen))
        founds = [found]
    else:
        by_role = {role: _Found(folder) for role, folder in sets.items()}
        founds = list(by_role.values())
        table = _class_table(by_role.get("train", founds[0]), class_names)
        split = _split_of_sets(by_role, table, val_fraction, split_seed)
    _add_notes(split, founds)
    return split


def _named_sets(root: Path, evaluating: bool) -> dict[str, Path]:
    """Folders of the first layout by role (train, val, test); empty for the second."""
    folders = {entry.name: Path(entry.path) for entry in _visible(root) if _is_folder(entry)}
    roles = {"train": "train", "test": "test", **dict.fromkeys(HELD_OUT_NAMES, "val")}
    named = [name for name in folders if name.lower() in roles]
    sets: dict[str, Path] = {}
    for name in named:
        role = roles[name.lower()]
        if role in sets:
            raise ValueError(f"{root} must have one {role} folder, got {sets[role].name}/ and {name}/")
        sets[role] = folders[name]
    only_sets = len(named) == len(folders)
    if "train" in sets:
        return sets if only_sets or len(sets) > 1 else {}
    if sets and only_sets and not evaluating:
        raise ValueError(f"{root} has {'/ and '.join(named)}/ but no train/, which names the classes")
    return sets if only_sets else {}


class _Found:
    """The images under one set of class folders, with names in sorted order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ignored: Counter[str] = Counter()
        self.names: list[str] = []
        self.counts: dict[str, int] = {}
        self.stray = 0  # images beside the class folders, in none of them
        for entry in _visible(root):
            if _is_folder(entry):
                names = self._images_of_class(entry)
                self.counts[entry.name] = len(names)
                self.names += names
            elif is_image_name(entry.name):
                self.stray += 1

    def _images_of_class(self, folder: os.DirEntry[str]) -> list[str]:
        names = []
        for name in walk_files(folder):
            if is_image_name(name.rpartition("/")[2]):
                names.append(f"{folder.name}/{name}")
            else:
                self.ignored[os.path.splitext(name)[1].lower() or "no ending"] += 1
        return sorted(names)

    def labels(self, table: list[str]) -> np.ndarray:
        number = {name: label for label, name in enumerate(table)}
        unknown = [name for name, count in self.counts.items() if count and name not in number]
        if unknown:
            raise ValueError(
                f"{self.root} holds images of {_quoted(unknown)}, which the class table lacks: {_quoted(table)}"
            )
        return np.asarray([number[name.split("/", 1)[0]] for name in self.names], dtype=np.int64)

    def images(self, table: list[str], chosen: np.ndarray | None = None) -> ImageList:
        labels = self.labels(table)
        indices = np.arange(len(labels)) if chosen is None else np.flatnonzero(chosen)
        return ImageList(self.root, [self.names[index] for index in indices], labels[indices])


def _class_table(found: _Found, class_names: list[str] | None) -> list[str]:
    if not found.counts and found.stray:
        raise ValueError(
            f"{found.root} holds {counted(found.stray, 'image')} but no class folders; "
            "put each class in a folder of its own"
        )
    if not found.names:
        others = ", ".join(f"{count} {ending}" for ending, count in sorted(found.ignored.items()))
        raise ValueError(
            f"{found.root} holds no images in class folders (endings {' '.join(IMAGE_EXTENSIONS)})"
            + (f"; other files found: {others}" if others else "")
        )
    if class_names is not None:
        return list(class_names)
    table = [name for name, count in found.counts.items() if count]
    if len(table) < 2:
        raise ValueError(f"{found.root} must hold images of at least two classes, got only {table[0]!r}")
    unwritable = [name for name in table if name != printable(name)]
    if unwritable:  # the class table is stored with the weights as JSON, and in the run folder as lines
        raise ValueError(
            f"class folders of {found.root} must have names in UTF-8 without control characters, "
            f"got {_quoted(unwritable)}"
        )
    return table


def _split_of_sets(founds: dict[str, _Found], table: list[str], val_fraction: float, split_seed: int) -> DataSplit:
    images = {role: found.images(table) for role, found in founds.items()}
    held = images.get("val", images.get("test"))
    if held is None:
        chosen = held_out(founds["train"].names, images["train"].labels, val_fraction, split_seed)
        return DataSplit(table, founds["train"].images(table, ~chosen), founds["train"].images(table, chosen))
    if not len(held):
        raise ValueError(f"{held.root} holds no images in class folders")
    train = images.get("train", ImageList(held.root, [], np.zeros(0)))
    return DataSplit(table, train, held, images["test"] if "val" in images and "test" in images else None)


def _add_notes(split: DataSplit, founds: list[_Found]) -> None:
    spellings: defaultdict[str, list[str]] = defaultdict(list)
    for name in split.class_names:
        spellings[unicodedata.normalize("NFC", name)].append(ascii(name))
    split.notes += [
        f"class names look alike but differ in their Unicode spelling, so they are classes of their own: {', '.join(alike)}"
        for alike in spellings.values()
        if len(alike) > 1
    ]
    for found in founds:
        split.ignored += found.ignored
        empty = [name for name, count in found.counts.items() if not count]
        if empty:
            split.notes.append(f"{found.root}: class folders without images are left out: {_quoted(empty)}")
        if found.stray:
            split.notes.append(f"{found.root}: left out {counted(found.stray, 'image')} beside the class folders")
    for images, purpose in ((split.train, "train on"), (split.val, "validate on"), (split.test, "test on")):
        if images is None or len(images) == 0:
            continue
        present = set(np.unique(images.labels).tolist())
        missing = [name for label, name in enumerate(split.class_names) if label not in present]
        if missing:
            split.notes.append(f"no images to {purpose} of {_quoted(missing)}; class numbers are unchanged")


def walk_files(folder: str | os.PathLike[str], above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the files in and below a folder, links followed, hidden names and links that lead back up left out.

    Args:
        folder: where to look.
        above: real paths of the folders that led here.

    Yields:
        Names relative to the folder with forward slashes, each folder's in plain sorted order.

    Raises:
        ValueError: a folder cannot be listed.
    """
    place = os.path.realpath(folder)
    if place in above:
        return
    for entry in _visible(folder):
        if _is_folder(entry):
            yield from (f"{entry.name}/{name}" for name in walk_files(entry, above | {place}))
        else:
            yield entry.name


def _visible(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".") and entry.name != "__MACOSX"]
    except OSError as error:
        raise ValueError(f"{printable(os.fspath(folder))} cannot be listed: {error.strerror}") from error
    return sorted(shown, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: no folder, and reading it as a file says what is wrong
        return False


def _quoted(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
