"""The folder of one run: its name, its files, and what is written down about where it came from."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import filelock
import pytorch_lightning as pl
import torch

import polaformer
from polaformer.models.atomic import write_text
from polaformer.recipe import Recipe

from .recipes import write_recipe

PACKAGES = ("torch", "torchvision", "timm", "pytorch-lightning", "torchmetrics", "numpy", "pillow", "safetensors")


@dataclass(frozen=True)
class RunFolder:
    """Names of the files of one run."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The recipe with every key resolved."""
        return self.path / "recipe.yaml"

    @property
    def versions(self) -> Path:
        """Versions, seed, command, machine and git state."""
        return self.path / "versions.json"

    @property
    def classes(self) -> Path:
        """Class names in the order of the network's outputs, one a line."""
        return self.path / "classes.txt"

    @property
    def metrics(self) -> Path:
        """One row an epoch."""
        return self.path / "metrics.csv"

    @property
    def curves(self) -> Path:
        """Learning curves."""
        return self.path / "curves.png"

    @property
    def last(self) -> Path:
        """Checkpoint to resume from."""
        return self.path / "last.ckpt"

    @property
    def best(self) -> Path:
        """Checkpoint of the epoch with the highest top-1."""
        return self.path / "best.ckpt"

    @property
    def last_weights(self) -> Path:
        """Weights of the last epoch, with class names and preprocessing."""
        return self.path / "last.safetensors"

    @property
    def best_weights(self) -> Path:
        """Weights of the best epoch, with class names and preprocessing."""
        return self.path / "best.safetensors"


def check_name_is_free(recipe: Recipe) -> None:
    """Raise ValueError when run.name is no name of a folder, or of one that exists already and holds something."""
    name = recipe.run.name
    if name is None:
        return
    if name in ("", ".", "..") or any(separator in name for separator in "/\\\0"):
        raise ValueError(f"run.name must be the name of a folder in run.dir, without a path, got {name!r}")
    path = Path(recipe.run.dir) / name
    if path.exists() and any(path.iterdir()):
        raise ValueError(
            f"run.name must be new in {recipe.run.dir}, got {name!r}: {path} exists; "
            f"resume it with --resume {path}, or choose another name"
        )


def create_folder(recipe: Recipe) -> RunFolder:
    """Make the folder of a new run: run.name, or model, data and the next free number.

    Args:
        recipe: names the parent folder (`run.dir`), which is made when missing.

    Returns:
        The new folder.

    Raises:
        ValueError: the parent cannot be written, or the name is taken.
    """
    check_name_is_free(recipe)
    parent = Path(recipe.run.dir)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if recipe.run.name is not None:
            path = parent / recipe.run.name
            path.mkdir(exist_ok=True)
            return RunFolder(path)
        stem = f"{recipe.model.name}-{Path(recipe.data.path).resolve().name}"
        number = 1
        while True:
            path = parent / f"{stem}-{number}"
            try:
                path.mkdir()
                return RunFolder(path)
            except FileExistsError:
                number += 1
    except OSError as error:
        raise ValueError(f"run.dir must be a folder that can be written, got {recipe.run.dir}: {error}") from error


def write_origin(folder: RunFolder, recipe: Recipe, class_names: Sequence[str]) -> None:
    """Write recipe.yaml, versions.json and classes.txt: enough to run the same again.

    Args:
        folder: where.
        recipe: the resolved recipe.
        class_names: in the order of the network's outputs.
    """
    write_recipe(folder.recipe, recipe)
    write_text(folder.versions, json.dumps(describe_origin(recipe.train.seed), indent=2) + "\n")
    write_text(folder.classes, "".join(f"{name}\n" for name in class_names))


def describe_origin(seed: int) -> dict[str, Any]:
    """Versions, seed, command, machine and git state of this process, as plain values."""
    return {
        "polaformer": polaformer.__version__,
        "python": platform.python_version(),
        "packages": {name: _package_version(name) for name in PACKAGES},
        "seed": seed,
        "command": sys.argv,
        "platform": platform.platform(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "git": {"working folder": git_state(Path.cwd()), "polaformer": git_state(Path(polaformer.__file__).parent)},
    }


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the git repository a folder lies in and whether tracked files differ from it; None outside one."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": git("status", "--porcelain", "-uno") != ""}
    except (OSError, subprocess.CalledProcessError):  # no git program, no repository, or no commit yet
        return None


class FolderCallback(pl.Callback):
    """Makes the run folder on the first process, keeps other runs out of it, and tells the other processes where it is.

    Args:
        recipe: the resolved recipe.
        class_names: in the order of the network's outputs.
        existing: folder of the run that is resumed; None makes a new one.
    """

    def __init__(self, recipe: Recipe, class_names: Sequence[str], existing: RunFolder | None) -> None:
        self._recipe = recipe
        self._class_names = class_names
        self._folder = existing
        self._lock: filelock.FileLock | None = None

    @property
    def folder(self) -> RunFolder:
        """The run's folder, from the start of training on."""
        assert self._folder is not None, "the folder is known from setup on"
        return self._folder

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Lightning's hook, before anything else of the run.

        Raises:
            ValueError: the folder cannot be made, or another process is training in it; on all processes alike.
        """
        problem, path = self._open() if trainer.is_global_zero else ("", "")
        # Processes that Lightning or torchrun started know nothing of one another until now.
        problem, path = trainer.strategy.broadcast((problem, path))
        if problem:
            raise ValueError(problem)
        self._folder = RunFolder(Path(path))

    def _open(self) -> tuple[str, str]:
        """Make or lock the folder and write what is known at the start; returns what is wrong, and the folder."""
        try:
            folder = self._folder or create_folder(self._recipe)
            self._lock = lock_folder(folder)
            for leftover in folder.path.glob(".*.tmp"):  # of a session that was killed while it wrote
                leftover.unlink()
            write_origin(folder, self._recipe, self._class_names)
        except (ValueError, OSError) as error:
            return str(error), ""
        return "", str(folder.path)

    def release(self) -> None:
        """Let other processes train in the folder."""
        if self._lock is not None:
            self._lock.release()


def lock_folder(folder: RunFolder) -> filelock.FileLock:
    """Lock a run folder for this process; the system lets go of it when the process ends, however it ends.

    Raises:
        ValueError: another process holds the lock.
    """
    lock = filelock.FileLock(folder.path / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(f"the run in {folder.path} is in progress: another process is training in it") from None
    return lock
