"""Checkpoints that survive a kill at any moment, and what they say about the run beside Lightning's own state."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import CheckpointIO
from torch import nn

from polaformer.models.atomic import atomic_write, check_archive
from polaformer.models.weights import WeightsInfo, save_weights
from polaformer.recipe import Recipe

from .ema import EmaCallback
from .folder import FolderCallback, RunFolder
from .recipes import recipe_from_dict, recipe_to_dict

STATE_KEY = "polaformer"


@dataclass(frozen=True)
class RunState:
    """What a checkpoint knows about its run: plain values, stored under 'polaformer'."""

    recipe: Recipe
    info: WeightsInfo
    """How to build the network and prepare its images; class names in the order of its outputs."""
    epoch: int
    """Epoch to continue in, from 0."""
    batches: int
    """Batches of that epoch already used, on each process."""
    updates: int
    """Optimiser steps done."""
    world_size: int
    """Number of processes."""
    num_train: int
    """Number of training images."""

    def to_dict(self) -> dict[str, Any]:
        """As nested dictionaries of plain values."""
        values = dataclasses.asdict(self)
        return values | {"recipe": recipe_to_dict(self.recipe)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunState:
        """Rebuild from `to_dict`."""
        rebuilt = {"recipe": recipe_from_dict(values["recipe"]), "info": WeightsInfo(**values["info"])}
        return cls(**{**values, **rebuilt})


class AtomicCheckpointIO(CheckpointIO):
    """Writes a checkpoint beside the old one, syncs and reads it back, and only then takes the old one's name.

    Whatever happens in between, the path holds a complete checkpoint: the old or the new. Files are read with
    `weights_only=True`, so they may hold tensors and plain values alone.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint; OSError names the file when the folder cannot be written or the disk is full."""
        try:
            with atomic_write(Path(path)) as temporary:
                _write(checkpoint, temporary)
                read_checkpoint(temporary)
        except OSError as error:
            raise OSError(f"the checkpoint {path} could not be written: {error}") from error

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint to the CPU; tensors and plain values only, whatever `weights_only` asks."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink()


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    try:
        torch.save(checkpoint, path)
    except RuntimeError as error:
        # torch's writer says so where the disk is full, and means a short write.
        if "inline_container" not in str(error):
            raise
        raise OSError("the disk or a limit on file sizes is full") from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run with its tensors on the CPU.

    Args:
        path: a .ckpt file.

    Returns:
        Lightning's dictionary, with the run's own entry under 'polaformer'.

    Raises:
        ValueError: there is no such file, it cannot be read, or no run of polaformer wrote it.
    """
    if not path.is_file():
        raise ValueError(f"checkpoint must be an existing file, got {path}")
    try:
        check_archive(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError, KeyError or its own
        raise ValueError(f"checkpoint must be a complete .ckpt file, got {path}, which is not or is damaged") from error
    if not isinstance(checkpoint, dict) or STATE_KEY not in checkpoint:
        raise ValueError(f"checkpoint must be one that polaformer fit wrote (last.ckpt or best.ckpt), got {path}")
    return checkpoint


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint to resume: the last.ckpt of a run folder, or that file itself.

    Raises:
        ValueError: nothing is there to resume from, or the run would lose what it did after that checkpoint.
    """
    path = Path(path)
    if path.is_dir():
        path = RunFolder(path).last
    if not path.is_file():
        raise ValueError(f"resume must be a run folder with last.ckpt in it, or that file, got {path}")
    last = RunFolder(path.parent).last
    if last.is_file() and not path.samefile(last):
        raise ValueError(
            f"resume must be the run folder or its last.ckpt, got {path}: going on from there would overwrite {last}; "
            "a new run can start from it, with its weights file as model.checkpoint"
        )
    return path


class CheckpointCallback(pl.Callback):
    """Keeps last.ckpt, best.ckpt and the weights of both.

    last.ckpt is written at the end of every epoch and every so many updates; best.ckpt when an epoch's top-1 exceeds
    all before it, or equals the highest at a lower loss. With a weight average (EMA) the weights files hold the average, which is also what was scored.

    Args:
        files: knows the folder.
        recipe: the resolved recipe.
        info: written into the weights files.
        num_train: number of training images.
        ema: the weight average, or None.
    """

    def __init__(
        self, files: FolderCallback, recipe: Recipe, info: WeightsInfo, num_train: int, ema: EmaCallback | None
    ) -> None:
        self._files = files
        self._recipe = recipe
        self._info = info
        self._num_train = num_train
        self._ema = ema
        self._position = (0, 0)
        self.best_top1 = -1.0
        self.best_loss = math.inf
        self.best_epoch = -1

    def state_dict(self) -> dict[str, Any]:
        """Lightning's hook: the best epoch so far."""
        return {"best_top1": self.best_top1, "best_loss": self.best_loss, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning's hook."""
        self.best_top1, self.best_loss = state_dict["best_top1"], state_dict["best_loss"]
        self.best_epoch = state_dict["best_epoch"]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lightning's hook: add the run's own entry."""
        epoch, batches = self._position
        checkpoint[STATE_KEY] = RunState(
            recipe=self._recipe,
            info=self._info,
            epoch=epoch,
            batches=batches,
            updates=trainer.global_step,
            world_size=trainer.world_size,
            num_train=self._num_train,
        ).to_dict()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: save every so many updates."""
        every = self._recipe.train.checkpoint_every
        if every and self.can_save(trainer, batch_idx) and trainer.global_step % every == 0:
            self.save_within_epoch(trainer, batch_idx)

    @staticmethod
    def can_save(trainer: pl.Trainer, batch_idx: int) -> bool:
        """Whether the run can be resumed from after this batch: an update is complete and the epoch is not."""
        done = batch_idx + 1
        return done < trainer.num_training_batches and done % trainer.accumulate_grad_batches == 0

    def save_within_epoch(self, trainer: pl.Trainer, batch_idx: int) -> None:
        """Write last.ckpt after a batch for which `can_save` holds."""
        self._position = (trainer.current_epoch, batch_idx + 1)
        trainer.save_checkpoint(self._files.folder.last)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook, after validation: save last, and best when it is."""
        folder = self._files.folder
        top1, loss = (float(trainer.callback_metrics[name]) for name in ("val_top1", "val_loss"))
        # A few held-out images tie often, and the first epoch that got them right is seldom the best.
        improved = (top1, -loss) > (self.best_top1, -self.best_loss)
        if improved:
            self.best_top1, self.best_loss, self.best_epoch = top1, loss, trainer.current_epoch
        if trainer.is_global_zero:
            save_weights(folder.last_weights, self._scored_model(pl_module), self._info)
            if improved:
                copy_atomically(folder.last_weights, folder.best_weights)
        # last.ckpt comes last: killed before it, the run goes on from the one before and writes the others again.
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._position = (trainer.current_epoch + 1, 0)
            if improved:
                trainer.save_checkpoint(folder.best)
                self._copy(trainer, folder.best, folder.last)
            else:
                trainer.save_checkpoint(folder.last)
        elif improved:
            # max_steps ended the run within the epoch, and last.ckpt holds the place to resume from.
            self._copy(trainer, folder.last, folder.best)

    def _scored_model(self, task: Any) -> nn.Module:
        return task.model if self._ema is None else self._ema.averaged_model

    @staticmethod
    def _copy(trainer: pl.Trainer, source: Path, target: Path) -> None:
        if trainer.is_global_zero:
            copy_atomically(source, target)


def copy_atomically(source: Path, target: Path) -> None:
    """Copy a file so that the target is the old one or the whole new one at any moment."""
    with atomic_write(target) as temporary:
        shutil.copyfile(source, temporary)
