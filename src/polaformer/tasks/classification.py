"""Image classification: loss, metrics, optimiser and schedule of one network."""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from timm.optim import create_optimizer_v2, get_optimizer_info
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAccuracy

from polaformer.recipe import OptimConfig, TrainConfig

from .freezing import freeze_parameters
from .metrics import MeanLoss
from .mixing import BatchMixer
from .randomness import seed_generators
from .schedule import build_schedule

IGNORED = -1
"""Label of an image that could not be read: it enters neither loss nor metrics."""


class ClassificationTask(pl.LightningModule):
    """Trains and scores a network that maps images (B, channels, height, width) to logits (B, C).

    Loss: cross-entropy with label smoothing, against mixed targets where mixup or CutMix is on; in evaluation plain
    cross-entropy. Metrics: top-1, top-min(5, C), mean loss and number of images, each image counted once over all
    processes. A batch is (images, labels, …) with labels (B,) int64, -1 for an image to leave out in evaluation.

    The module keeps no hyper-parameters of its own: what a checkpoint needs to be read again is written by
    `polaformer.runs`.

    Args:
        model: the network.
        num_classes: C.
        optim: optimiser and schedule.
        train: length, smoothing, mixing, accumulation and seed.
        batch_size: images a batch on each process (counts into the learning rate's total batch).
        freeze: patterns of parameters that are not trained.

    Raises:
        ValueError: a freeze pattern matches nothing, or the optimiser's name is unknown.
    """

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        *,
        optim: OptimConfig | None = None,
        train: TrainConfig | None = None,
        batch_size: int = 1,
        freeze: tuple[str, ...] | list[str] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.optim = optim or OptimConfig()
        self.train_config = train or TrainConfig()
        self.batch_size = batch_size
        self._still = freeze_parameters(model, freeze)
        mixing = self.train_config.mixup > 0 or self.train_config.cutmix > 0
        self.mixer = BatchMixer(self.train_config, num_classes) if mixing else None
        # validate_args=False: the checks read the labels back from the device at every batch.
        self.top1 = MulticlassAccuracy(num_classes, 1, "micro", ignore_index=IGNORED, validate_args=False)
        top_k = min(5, num_classes)
        self.top5 = MulticlassAccuracy(num_classes, top_k, "micro", ignore_index=IGNORED, validate_args=False)
        self.mean_loss = MeanLoss()
        self.num_images = SumMetric(nan_strategy="disable")

    def train(self, mode: bool = True) -> ClassificationTask:
        """Set training mode; frozen normalisation layers with running statistics stay in evaluation mode."""
        super().train(mode)
        for module in self._still:
            module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, channels, height, width)."""
        return self.model(images)

    def training_loss(self, batch: Any, epoch: int, batch_idx: int) -> Tensor:
        """Loss of one batch: a function of weights, batch and (seed, epoch, batch index, rank) alone.

        Args:
            batch: (images, labels, …).
            epoch: epoch, from 0.
            batch_idx: batch in the epoch, from 0.

        Returns:
            Scalar loss.
        """
        images, targets = batch[0], batch[1]
        seed_generators(self.train_config.seed, epoch, batch_idx, self.global_rank)
        if self.mixer is not None:
            images, targets = self.mixer(images, targets)
            return F.cross_entropy(self(images), targets)
        return F.cross_entropy(self(images), targets, label_smoothing=self.train_config.smoothing)

    def on_train_start(self) -> None:
        """Lightning's hook: a run resumed for more epochs goes on at its new schedule's rate, not the checkpoint's."""
        scheduler = self.lr_schedulers()
        assert isinstance(scheduler, LambdaLR)
        for group, peak, factor in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas):
            group["lr"] = peak * factor(scheduler.last_epoch)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Lightning's hook: the loss to minimise, and the same number for the records."""
        loss = self.training_loss(batch, self.current_epoch, batch_idx)
        self.log("loss", loss.detach(), prog_bar=True, batch_size=len(batch[0]))
        return {"loss": loss, "train_loss": loss.detach()}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Lightning's hook: add one batch to the metrics val_loss, val_top1, val_top5 and val_images."""
        self._score(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Lightning's hook: add one batch to the metrics test_loss, test_top1, test_top5 and test_images."""
        self._score(batch, "test")

    def _score(self, batch: Any, stage: str) -> None:
        images, labels = batch[0], batch[1]
        logits = self(images).float()
        counted = labels != IGNORED
        self.mean_loss.update(F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none"), counted)
        self.num_images.update(counted.sum())
        self.top1.update(logits, labels)
        self.top5.update(logits, labels)
        shown = {f"{stage}_loss": self.mean_loss, f"{stage}_top1": self.top1}
        self.log_dict(shown, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(images))
        others = {f"{stage}_top5": self.top5, f"{stage}_images": self.num_images}
        self.log_dict(others, on_step=False, on_epoch=True, batch_size=len(images))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Lightning's hook: timm's optimiser over the parameters that train, and the rate of every update."""
        self.trainer.fit_loop.setup_data()  # the number of batches is not known before
        batches = int(self.trainer.num_training_batches)
        accumulate = self.train_config.accumulate
        schedule = build_schedule(
            self.optim,
            epochs=self.train_config.epochs,
            updates_per_epoch=math.ceil(batches / accumulate),
            images_per_update=self.batch_size * self.trainer.world_size * accumulate,
        )
        optimizer = build_optimizer(self.model, self.optim, lr=schedule.peak)
        scheduler = LambdaLR(optimizer, lambda update: schedule.factor(update))  # a function is left out of checkpoints
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def build_optimizer(model: nn.Module, optim: OptimConfig, *, lr: float) -> torch.optim.Optimizer:
    """Build timm's optimiser of a name, with the decay exemptions and layer-wise rates of the recipe.

    Biases, 1-D tensors and what the model's `no_weight_decay` lists are not decayed. With layer_decay d, a parameter
    n layers below the head learns at lr · dⁿ.

    Args:
        model: the network; its frozen parameters are left out.
        optim: the recipe's optimiser section.
        lr: peak learning rate, already scaled to the total batch.

    Returns:
        The optimiser; every parameter group's 'lr' is its own peak.

    Raises:
        ValueError: the name is unknown to timm.
    """
    info = get_optimizer_info(optim.opt)
    moments: dict[str, Any] = {}
    if info.has_betas and info.num_betas == len(optim.betas):
        moments["betas"] = tuple(optim.betas)
    if info.has_eps:
        moments["eps"] = optim.eps
    optimizer = create_optimizer_v2(
        model, opt=optim.opt, lr=lr, weight_decay=optim.weight_decay, layer_decay=optim.layer_decay, **moments
    )
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    return optimizer
