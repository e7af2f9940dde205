"""metrics.csv and curves.png: one row and one point an epoch."""

from __future__ import annotations

import csv
import time
from typing import Any

import pytorch_lightning as pl
from torchmetrics import MeanMetric

from polaformer.models.atomic import atomic_write

from .curves import draw_curves
from .folder import FolderCallback
from .timing import DataWaitCallback

COLUMNS: tuple[str, ...] = (
    "epoch",
    "step",
    "lr",
    "train_loss",
    "val_loss",
    "val_top1",
    "val_top5",
    "seconds",
    "data_wait",
)
"""epoch: from 1; step: updates done; lr: of the last update, highest parameter group; train_loss: mean over the epoch's
batches as trained (smoothed, mixed); val_*: held-out images, shares in [0, 1], top5 is top-k with k = min(5, classes);
seconds: of the epoch with validation; data_wait: share of training time spent waiting for the loader."""

Row = dict[str, float]


class HistoryCallback(pl.Callback):
    """Collects one row an epoch; checkpoints carry the rows and the sums of an unfinished epoch.

    Args:
        files: knows the folder.
        timing: knows the data wait.
        draw_every: seconds between drawings of the curves; the end of training always draws.
    """

    def __init__(self, files: FolderCallback, timing: DataWaitCallback, draw_every: float = 30.0) -> None:
        self._files = files
        self._timing = timing
        self._draw_every = draw_every
        self._train_loss = MeanMetric(nan_strategy="disable")
        self._seconds_before = 0.0
        self._started = 0.0
        self._drawn = 0.0
        self._learning_rate = 0.0
        self.rows: list[Row] = []

    def state_dict(self) -> dict[str, Any]:
        """Lightning's hook: rows so far, and sums and seconds of the epoch under way."""
        return {
            "rows": [dict(row) for row in self.rows],
            "sum": float(self._train_loss.mean_value),
            "weight": float(self._train_loss.weight),
            "seconds": self._seconds(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning's hook."""
        self.rows = [dict(row) for row in state_dict["rows"]]
        self._train_loss.mean_value.fill_(state_dict["sum"])
        self._train_loss.weight.fill_(state_dict["weight"])
        self._seconds_before = state_dict["seconds"]

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook: start the clock and move the sums to the device."""
        self._train_loss.to(pl_module.device)
        self._started = self._drawn = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: the rate is read before the schedule moves on."""
        self._learning_rate = max(group["lr"] for group in trainer.optimizers[0].param_groups)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: add the loss, without reading it back from the device."""
        self._train_loss.update(outputs["train_loss"])

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook, after validation: complete the row and write the files."""
        metrics = trainer.callback_metrics
        self.rows.append(
            {
                "epoch": trainer.current_epoch + 1,
                "step": trainer.global_step,
                "lr": self._learning_rate,
                "train_loss": float(self._train_loss.compute()),
                "val_loss": float(metrics["val_loss"]),
                "val_top1": float(metrics["val_top1"]),
                "val_top5": float(metrics["val_top5"]),
                "seconds": round(self._seconds(), 3),
                "data_wait": round(self._timing.share, 4),
            }
        )
        self._train_loss.reset()
        self._seconds_before, self._started = 0.0, time.perf_counter()
        if trainer.is_global_zero:
            self._write()
            if time.perf_counter() - self._drawn > self._draw_every:
                self._draw()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        if trainer.is_global_zero and self.rows:
            self._draw()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Lightning's hook: a run that stops early has its curves too."""
        self.on_train_end(trainer, pl_module)

    def _write(self) -> None:
        with atomic_write(self._files.folder.metrics) as temporary, open(temporary, "w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    def _draw(self) -> None:
        draw_curves(self.rows, self._files.folder.curves)
        self._drawn = time.perf_counter()
