"""The learning rate of every update: warm-up, then cosine or constant, then cool-down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from polaformer.recipe import OptimConfig


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the update's number t alone, so a resumed run needs no other state.

    Warm-up (t < w): rate = start + (peak - start) · t / w. Then, up to T updates,
    rate = minimum + (peak - minimum) · (1 + cos(π t / T)) / 2 for the cosine, or peak for the constant; after T the
    cosine stays at its minimum. The warm-up lies inside the T updates.

    Args:
        peak: highest rate.
        start: rate of update 0 when there is a warm-up.
        minimum: rate at the end of the cosine.
        warmup_updates: w.
        updates: T, cool-down not counted.
        kind: 'cosine' or 'constant'.

    Source: timm's CosineLRScheduler with `t_in_epochs=False`, the schedule of the published recipes.
    """

    peak: float
    start: float
    minimum: float
    warmup_updates: int
    updates: int
    kind: Literal["cosine", "constant"]

    def rate(self, update: int) -> float:
        """Rate of one update, counted from 0."""
        if update < self.warmup_updates:
            return self.start + (self.peak - self.start) * update / self.warmup_updates
        if self.kind == "constant":
            return self.peak
        if update >= self.updates:
            return self.minimum
        return self.minimum + 0.5 * (self.peak - self.minimum) * (1 + math.cos(math.pi * update / self.updates))

    def factor(self, update: int) -> float:
        """Rate of one update as a share of the peak."""
        return self.rate(update) / self.peak


def build_schedule(optim: OptimConfig, *, epochs: int, updates_per_epoch: int, images_per_update: int) -> Schedule:
    """Turn the recipe's epochs and reference batch into updates and rates.

    Args:
        optim: the recipe's optimiser section.
        epochs: passes over the training images, cool-down not counted.
        updates_per_epoch: optimiser steps in one pass.
        images_per_update: total batch over all processes and accumulated batches.

    Returns:
        The schedule; its rates are multiplied by images_per_update / optim.lr_batch where that is given.

    Raises:
        ValueError: lr is not positive.
    """
    if not optim.lr > 0:
        raise ValueError(f"optim.lr must be positive, got {optim.lr}")
    scale = images_per_update / optim.lr_batch if optim.lr_batch else 1.0
    return Schedule(
        peak=optim.lr * scale,
        start=optim.warmup_lr * scale,
        minimum=optim.min_lr * scale,
        warmup_updates=round(warmup_epochs(optim, epochs) * updates_per_epoch),
        updates=epochs * updates_per_epoch,
        kind=optim.sched,
    )


def warmup_epochs(optim: OptimConfig, epochs: int) -> float:
    """Epochs of warm-up in a training of so many epochs: those given, else a sixth of the training, at most 5."""
    return min(epochs / 6, 5.0) if optim.warmup_epochs is None else optim.warmup_epochs


def inert_settings(optim: OptimConfig, epochs: int) -> list[str]:
    """What in a schedule has no effect, one line each."""
    notes = []
    warm_up = warmup_epochs(optim, epochs)
    if warm_up >= epochs:
        notes.append(
            f"optim.warmup_epochs should be below train.epochs = {epochs}, got {warm_up:g}: "
            "the learning rate never leaves the warm-up"
        )
    if optim.sched == "constant" and optim.cooldown_epochs > 0:
        notes.append("optim.cooldown_epochs has no effect with optim.sched constant: there is no minimum to stay at")
    return notes


def total_epochs(optim: OptimConfig, epochs: int) -> int:
    """Passes over the training images with the cool-down, rounded up to whole epochs."""
    return epochs + (math.ceil(optim.cooldown_epochs) if optim.sched == "cosine" else 0)
