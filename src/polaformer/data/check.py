"""What is wrong with a folder of images, before a run finds out."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .digits import DIGITS, load_digits_split
from .folders import first_of, passed_over, read_folder
from .images import CONVERTIBLE_EXTENSIONS, ImageError, load_image
from .names import counted, printable
from .split import DataSplit, LabelledImages, class_table

SMALL_SIDE = 32  # pixels; below it the deepest stage of a pyramid sees less than one token
LONG_ASPECT = 20.0  # a centre crop of a longer strip shows little of it, and resizing it needs much memory
PROBLEMS_SHOWN = 50
FILES_QUEUED = 1024


@dataclass(frozen=True)
class Problem:
    """One finding.

    Args:
        path: the file or folder concerned.
        reason: what is wrong, one line.
        severity: "error" where training would stop or lose the image, "warning" where it goes on.
    """

    path: str
    reason: str
    severity: Literal["error", "warning"]


@dataclass(frozen=True)
class DataReport:
    """What `check_data` found.

    Args:
        path: the folder.
        split: its images by role; None where it cannot be used at all.
        problems: errors first.
    """

    path: str
    split: DataSplit | None
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings may remain."""
        return all(problem.severity != "error" for problem in self.problems)

    def render(self, most: int = PROBLEMS_SHOWN) -> str:
        """The report as plain text.

        Args:
            most: problems listed; the rest are counted in one line.

        Returns:
            Lines without a final newline.
        """
        lines = [printable(self.path)]
        if self.split is not None:
            lines += [class_table(self.split, most=1000), ""]
        for problem in self.problems[:most]:
            place = "" if problem.path == self.path else f"{problem.path}: "  # the first line names the folder itself
            lines.append(printable(f"{problem.severity}: {place}{problem.reason}"))
        if len(self.problems) > most:
            lines.append(f"... and {len(self.problems) - most} more")
        counts = Counter(problem.severity for problem in self.problems)
        lines.append(", ".join(counted(counts[severity], severity) for severity in ("error", "warning")))
        return "\n".join(lines)


def check_data(
    path: str | os.PathLike[str], val_fraction: float = 0.2, split_seed: int = 0, num_threads: int | None = None
) -> DataReport:
    """Read every image under a folder and list what is wrong.

    Errors: a layout that cannot be used; files that cannot be decoded; a held-out class that training lacks; nothing
    held out. Warnings: class folders without images, classes missing from a set, classes whose names look alike, files
    with other endings, images under 32 pixels or longer than 20:1, and equal files, be they in two classes or in both
    the training and a held-out set.

    Args:
        path: the folder, as `data.path` of a recipe; so "digits" is the built-in data set, which has no problems.
        val_fraction: share held out where there is no held-out folder.
        split_seed: seed of that split.
        num_threads: threads that decode; null for one a core.

    Returns:
        The report; problems are no exceptions here.
    """
    root = os.fspath(path)
    if root == DIGITS:
        return DataReport(root, load_digits_split(val_fraction, split_seed), _shadowed_folder())
    try:
        split = read_folder(root, val_fraction, split_seed)
    except ValueError as error:
        return DataReport(root, None, [Problem(root, str(error), "error")])
    problems = [Problem(root, note, "warning") for note in split.notes]
    problems += [
        Problem(root, f"{passed_over(count, ending)}{first_of(count, split.first_ignored[ending])}", "warning")
        for ending, count in sorted(split.ignored.items())
        if ending not in CONVERTIBLE_EXTENSIONS  # those are among the notes
    ]
    if not len(split.val):
        problems.append(
            Problem(root, "must hold images to evaluate on, got none held out: each class has one", "error")
        )
    by_role = {role: images for role in ("train", "val", "test") if (images := getattr(split, role)) is not None}
    equal_files: defaultdict[bytes, list[tuple[str, int]]] = defaultdict(list)
    with ThreadPoolExecutor(num_threads or os.cpu_count()) as pool:
        for role, images in by_role.items():
            for index, (found, digest) in enumerate(_inspect_all(pool, images)):
                problems += found
                if digest is not None:
                    equal_files[digest].append((role, index))
    problems += _duplicates(equal_files, by_role, split.class_names)
    return DataReport(root, split, sorted(problems, key=lambda problem: problem.severity))


def _shadowed_folder() -> list[Problem]:
    if not os.path.isdir(DIGITS):
        return []
    return [Problem(DIGITS, f"{DIGITS} means the built-in data set; the folder of that name is ./{DIGITS}", "warning")]


def _inspect_all(pool: ThreadPoolExecutor, images: LabelledImages) -> Iterator[tuple[list[Problem], bytes | None]]:
    for start in range(0, len(images), FILES_QUEUED):  # `map` would queue a million files at once
        yield from pool.map(_inspect, map(images.path, range(start, min(start + FILES_QUEUED, len(images)))))


def _inspect(path: str) -> tuple[list[Problem], bytes | None]:
    try:
        width, height = load_image(path).size
        digest = hashlib.sha256(Path(path).read_bytes()).digest()
    except ImageError as error:
        return [Problem(path, error.reason, "error")], None
    except OSError as error:  # it has changed since
        return [Problem(path, str(error.strerror), "error")], None
    problems = []
    if min(width, height) < SMALL_SIDE:
        problems.append(Problem(path, f"is small ({width}x{height} pixels, under {SMALL_SIDE})", "warning"))
    if max(width, height) > LONG_ASPECT * min(width, height):
        problems.append(
            Problem(path, f"is a strip ({width}x{height} pixels), of which a square shows little", "warning")
        )
    return problems, digest


def _duplicates(
    equal_files: dict[bytes, list[tuple[str, int]]], by_role: dict[str, LabelledImages], class_names: list[str]
) -> Iterator[Problem]:
    for (role, index), *others in equal_files.values():
        path, name = by_role[role].path(index), class_names[by_role[role].labels[index]]
        for other_role, other_index in others:
            other, other_name = (
                by_role[other_role].path(other_index),
                class_names[by_role[other_role].labels[other_index]],
            )
            if name != other_name:
                yield Problem(other, f"equals {path}, in another class ({name!r} and {other_name!r})", "warning")
            elif (role == "train") != (other_role == "train"):
                yield Problem(other, f"equals {path}, in both the {role} and the {other_role} set", "warning")
