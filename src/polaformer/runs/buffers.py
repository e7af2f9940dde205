"""Keeps processes with different numbers of evaluation batches from waiting for one another."""

from __future__ import annotations

import pytorch_lightning as pl
import torch.distributed
from torch.nn.parallel import DistributedDataParallel


class EvaluationBuffers(pl.Callback):
    """Copies the first process's buffers to the others once, before validation, instead of at every batch.

    DistributedDataParallel sends buffers (running statistics of batch norm) before each forward pass, in evaluation
    too. Held-out images are not repeated to even out the processes, so one may have a batch more than another and
    would wait for ever.
    """

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        wrapped = trainer.strategy.model
        if isinstance(wrapped, DistributedDataParallel):
            for buffer in pl_module.model.buffers():
                torch.distributed.broadcast(buffer, src=0)
            wrapped.forward_sync_buffers = False

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        wrapped = trainer.strategy.model
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.forward_sync_buffers = True
