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
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ..notices import warn_user
from .images import CONVERTIBLE_EXTENSIONS, IMAGE_EXTENSIONS, is_image_name, load_image
from .listing import is_folder, visible, walk_files
from .names import counted, printable
from .packed import PackedStrings
from .split import DataSplit, held_out

NO_ENDING = "no ending"
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
        warn_user(note)
    return split


def read_folder(
    path: str | os.PathLike[str], val_fraction: float = 0.2, split_seed: int = 0, class_names: list[str] | None = None
) -> DataSplit:
    """List a folder's images without warning; the notes are in the result. Arguments as in `scan_folder`.

    Raises:
        ValueError: path is no folder, or one below it cannot be listed; there are images but no class folders; no
            images; fewer than two classes and no class_names; a class's name cannot be written down; a set holds a
            class that the training folder or the model lacks; two held-out folders.
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
        found.check_classes(table, class_names is not None)
        chosen = held_out(found.names, found.labels(table), val_fraction, split_seed)
        split = DataSplit(table, found.images(table, ~chosen), found.images(table, chosen))
        founds = [found]
    else:
        by_role = {role: _Found(folder) for role, folder in sets.items()}
        founds = list(by_role.values())
        table = _class_table(by_role.get("train", founds[0]), class_names)
        for found in founds:
            found.check_classes(table, class_names is not None)
        split = _split_of_sets(by_role, table, val_fraction, split_seed)
    _add_notes(split, founds)
    return split


def _named_sets(root: Path, evaluating: bool) -> dict[str, Path]:
    """Folders of the first layout by role (train, val, test); empty for the second."""
    folders = {entry.name: Path(entry.path) for entry in visible(root) if is_folder(entry)}
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
        self.first_ignored: dict[str, str] = {}
        self.names: list[str] = []
        self.counts: dict[str, int] = {}
        self.stray = 0  # images beside the class folders, in none of them
        self.first_stray = ""
        for entry in visible(root):
            if is_folder(entry):
                names = self._images_of_class(entry)
                self.counts[entry.name] = len(names)
                self.names += names
            elif is_image_name(entry.name):
                self.first_stray = self.first_stray or entry.path
                self.stray += 1

    def _images_of_class(self, folder: os.DirEntry[str]) -> list[str]:
        names = []
        for name in walk_files(folder):
            if is_image_name(name.rpartition("/")[2]):
                names.append(f"{folder.name}/{name}")
            else:
                ending = os.path.splitext(name)[1].lower() or NO_ENDING
                self.ignored[ending] += 1
                self.first_ignored.setdefault(ending, os.path.join(folder.path, *name.split("/")))
        return sorted(names)

    def check_classes(self, table: list[str], of_model: bool) -> None:
        unknown = [name for name, count in self.counts.items() if count and name not in set(table)]
        if unknown:
            knower = "the model does not know: its" if of_model else "the training folder lacks: its"
            raise ValueError(
                f"{self.root} holds images of {_quoted(unknown)}, which {knower} classes are {_quoted(table)}"
            )

    def labels(self, table: list[str]) -> np.ndarray:
        number = {name: label for label, name in enumerate(table)}
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
        convertible = [ending for ending in sorted(found.ignored) if ending in CONVERTIBLE_EXTENSIONS]
        raise ValueError(
            f"{found.root} holds no images in class folders (endings {' '.join(IMAGE_EXTENSIONS)})"
            + (f"; other files found: {others}" if others else "")
            + (f"; convert {' and '.join(convertible)} to JPEG or PNG" if convertible else "")
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
        split.first_ignored = found.first_ignored | split.first_ignored
        empty = [name for name, count in found.counts.items() if not count]
        if empty:
            split.notes.append(f"{found.root}: class folders without images are left out: {_quoted(empty)}")
        if found.stray:
            images = counted(found.stray, "image")
            split.notes.append(f"left out {images} beside the class folders{first_of(found.stray, found.first_stray)}")
        split.notes += [
            f"{passed_over(count, ending)}{first_of(count, found.first_ignored[ending])}; convert to JPEG or PNG"
            for ending, count in sorted(found.ignored.items())
            if ending in CONVERTIBLE_EXTENSIONS
        ]
    _note_missing(split, founds)


def _note_missing(split: DataSplit, founds: list[_Found]) -> None:
    """Note the classes that a set has no images of, with the reason."""
    in_one_folder = len(founds) == 1
    for images, purpose in ((split.train, "train on"), (split.val, "validate on"), (split.test, "test on")):
        if images is None or len(images) == 0:
            continue
        present = set(np.unique(images.labels).tolist())
        missing = [name for label, name in enumerate(split.class_names) if label not in present]
        single = [name for name in missing if in_one_folder and founds[0].counts.get(name)]
        absent = [name for name in missing if name not in single]
        if single:
            each = " each" if len(single) > 1 else ""
            split.notes.append(
                f"no images to {purpose} of {_quoted(single)}: only one image{each}, which is trained on; add another"
            )
        if absent:
            assert isinstance(images, ImageList)
            split.notes.append(f"no images to {purpose} of {_quoted(absent)}: {images.root} holds none")


def passed_over(count: int, ending: str) -> str:
    """'3 files ending in .txt passed over'."""
    with_ending = "without ending" if ending == NO_ENDING else f"ending in {ending}"
    return f"{counted(count, 'file')} {with_ending} passed over"


def first_of(count: int, path: str) -> str:
    """': PATH' for one file, ', such as PATH' for more."""
    return f": {printable(path)}" if count == 1 else f", such as {printable(path)}"


def _quoted(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
