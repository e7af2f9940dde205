"""How far a run is: a bar on a terminal, a line an epoch anywhere else."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import TQDMProgressBar

from .history import HistoryCallback

logger = logging.getLogger("polaformer")


def on_terminal() -> bool:
    """Whether bars, which are drawn on stdout, reach a terminal; in a file each redrawing would be another line."""
    return sys.stdout.isatty()


class ProgressBar(TQDMProgressBar):
    """Lightning's bar, with epochs counted from 1 as everywhere else in a run."""

    @property
    def train_description(self) -> str:
        """Name of the bar in training."""
        return f"Epoch {self.trainer.current_epoch + 1} of {self.trainer.max_epochs}"

    def on_train_epoch_start(self, *_: Any) -> None:
        """Lightning's hook, whose own would show 'Epoch 0' first."""
        self.train_progress_bar.set_description(self.train_description, refresh=False)
        self.train_progress_bar.reset(self.total_train_batches)


class EpochLines(pl.Callback):
    """Logs a line at the end of each epoch.

    Args:
        history: has the numbers; its hooks must run first.
    """

    def __init__(self, history: HistoryCallback) -> None:
        self._history = history

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        if trainer.is_global_zero:
            row = self._history.rows[-1]
            logger.info(
                "epoch %d of %d: loss %.4f, val_loss %.4f, val_top1 %.4f, %.1f s",
                row["epoch"],
                trainer.max_epochs,
                row["train_loss"],
                row["val_loss"],
                row["val_top1"],
                row["seconds"],
            )
