"""Ends a run early, at a place it can be resumed from: on Ctrl-C, on SIGTERM, or after max_steps updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl

from .checkpoints import CheckpointCallback

AGREE_EVERY = 16
"""Batches between the moments at which several processes agree on stopping."""


class RunInterrupted(Exception):
    """A signal ended the run; last.ckpt is written."""


class StoppingCallback(pl.Callback):
    """Turns Ctrl-C and SIGTERM into: finish the update, write last.ckpt, stop.

    A signal during validation waits for its end. The second one kills at once; last.ckpt is then the one before.
    With several processes it is enough that one of them gets the signal. `max_steps` ends the run with a validation.

    Args:
        checkpoints: writes last.ckpt.
        max_steps: updates after which to stop, or None.
    """

    def __init__(self, checkpoints: CheckpointCallback, max_steps: int | None) -> None:
        self._checkpoints = checkpoints
        self._max_steps = max_steps
        self._requested: str | None = None
        self._resumable_after: int | None = None
        self.stopped_by: str | None = None
        """Name of the signal that ended the run, once last.ckpt is written."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook: take the signals over from Lightning, which gives all handlers back when the run ends."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._request)
            signal.signal(signal.SIGTERM, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self._requested = signal.Signals(number).name
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if hasattr(signal, "SIGCHLD"):  # not on Windows
            # A signal to the whole process group ends the loader processes too, which torch would report by an
            # exception in the middle of the step.
            signal.signal(signal.SIGCHLD, lambda *_: None)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: from here to the end of the batch the run cannot be saved."""
        self._resumable_after = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: stop within an epoch."""
        if self._max_steps is not None and trainer.global_step >= self._max_steps and not trainer.should_stop:
            if self._checkpoints.can_save(trainer, batch_idx):
                self._checkpoints.save_within_epoch(trainer, batch_idx)
            trainer.should_stop = True
            return
        if self._checkpoints.can_save(trainer, batch_idx):
            self._resumable_after = batch_idx
            if self._agreed(trainer, batch_idx):
                self._checkpoints.save_within_epoch(trainer, batch_idx)
                self._stop()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook: stop between epochs; last.ckpt has just been written."""
        if self._agreed(trainer, -1):
            self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Lightning's hook: the signal ended the loader processes while the run waited for a batch of theirs."""
        if self._requested is None or self._resumable_after is None or self.stopped_by is not None:
            return
        if isinstance(exception, RuntimeError) and trainer.world_size == 1:
            self._checkpoints.save_within_epoch(trainer, self._resumable_after)
            self.stopped_by = self._requested

    def _stop(self) -> None:
        self.stopped_by = self._requested or "a signal to another process"
        raise RunInterrupted(self.stopped_by)

    def _agreed(self, trainer: pl.Trainer, batch_idx: int) -> bool:
        if trainer.world_size == 1:
            return self._requested is not None
        if (batch_idx + 1) % AGREE_EVERY:
            return False
        return trainer.strategy.reduce_boolean_decision(self._requested is not None, all=False)
