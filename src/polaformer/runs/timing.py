"""Where the time of training goes: waiting for data, or computing."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl

from polaformer.notices import warn_user


class DataWaitCallback(pl.Callback):
    """Measures, batch by batch, how long training waits for the loader and how long it computes.

    The wait runs from the end of one batch to the arrival of the next; computing is the rest, as the host sees it (the
    non-finite check before each update keeps host and device in step). Validation and saving count as neither. When
    the wait exceeds `threshold` of the sum, and `min_wait` seconds in all, one warning says so.

    Must be the last callback, so that other callbacks' work is not taken for waiting.

    Args:
        num_workers: loader processes, named in the advice.
        threshold: share of waiting above which to warn.
        min_wait: seconds of waiting below which not to warn.
    """

    def __init__(self, num_workers: int, threshold: float = 0.3, min_wait: float = 10.0) -> None:
        self._num_workers = num_workers
        self._threshold = threshold
        self._min_wait = min_wait
        self._mark = 0.0
        self._warned = False
        self.wait = 0.0
        """Seconds of waiting in this epoch."""
        self.compute = 0.0
        """Seconds of computing in this epoch."""

    @property
    def share(self) -> float:
        """Share of waiting in this epoch, 0 to 1."""
        total = self.wait + self.compute
        return self.wait / total if total > 0 else 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook: an epoch that is resumed midway starts no epoch of its own."""
        self._start_epoch()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        self._start_epoch()

    def _start_epoch(self) -> None:
        self.wait = self.compute = 0.0
        self._mark = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: the batch has arrived."""
        now = time.perf_counter()
        self.wait += now - self._mark
        self._mark = now

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: the batch is done."""
        now = time.perf_counter()
        self.compute += now - self._mark
        self._mark = now
        if not self._warned and self.wait > self._min_wait and self.share > self._threshold and trainer.is_global_zero:
            self._warned = True
            warn_user(
                f"training waits for data {self.share:.0%} of the time ({self.wait:.1f} s in this epoch): raise "
                f"data.num_workers (now {self._num_workers}), store smaller images, or use a faster disk"
            )
