"""Stops a run at the first loss or gradient that is not finite, and says where it came from."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn

from .trace import trace_non_finite


class NonFiniteError(RuntimeError):
    """A loss or gradient was not finite.

    Args:
        step: number of the update, from 0, that was not made.
        what: 'loss' or 'gradient'.
        where: sentence naming the first module concerned.
        module: full name of that module, or None where none could be named.
    """

    def __init__(self, step: int, what: str, where: str, module: str | None) -> None:
        super().__init__(f"the {what} is not finite at step {step}: {where}")
        self.step = step
        self.what = what
        self.module = module


class NonFiniteGuard(pl.Callback):
    """Checks loss and gradient norm before every update and stops the run when either is NaN or infinite.

    Cost: one norm over the gradients and one scalar read back from the device an update. The read makes the host wait
    for the backward pass; it comes before the update, so the weights are still those that produced the failure. Only
    then is the batch run again, with hooks on every module, to name the first one whose output, or whose gradient in
    backward order, is not finite. The step that failed is not applied and last.ckpt is left as it was.

    With 16-bit float precision the loss scaler probes for gradients that overflow and skips those updates; the guard
    leaves them to it while the scale is above 1.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[Any, int]] = []
        self._loss: Tensor | None = None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: remember the batches of this update."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._batches, self._loss = [], None
        self._batches.append((batch, batch_idx))

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Lightning's hook: sum the losses of this update, on the device."""
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Lightning's hook: gradients are complete, unscaled and not yet clipped."""
        assert self._loss is not None
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if torch.isfinite(norm + self._loss):
            return
        loss_is_finite = bool(torch.isfinite(self._loss))
        if loss_is_finite and _scaler_will_skip(trainer):
            return
        self._raise(trainer, pl_module, "gradient" if loss_is_finite else "loss")

    def _raise(self, trainer: pl.Trainer, task: Any, what: str) -> None:
        epoch = trainer.current_epoch
        for batch, batch_idx in self._batches:

            def run(batch: Any = batch, batch_idx: int = batch_idx) -> Tensor:
                with trainer.precision_plugin.train_step_context():
                    return task.training_loss(batch, epoch, batch_idx)

            finding = trace_non_finite(task.model, batch[0], run)
            if finding is not None:
                where = f"{finding.description} (epoch {epoch}, batch {batch_idx})"
                raise NonFiniteError(trainer.global_step, what, where, finding.module)
        others = " (another process holds the batch that does)" if trainer.world_size > 1 else ""
        where = f"no module shows it when epoch {epoch}, batch {self._batches[-1][1]} is run again{others}"
        raise NonFiniteError(trainer.global_step, what, where, None)


def _scaler_will_skip(trainer: pl.Trainer) -> bool:
    plugin = trainer.precision_plugin
    return isinstance(plugin, MixedPrecision) and plugin.scaler is not None and plugin.scaler.get_scale() > 1
