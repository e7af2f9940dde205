"""Metrics that torchmetrics does not have."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanLoss(Metric):
    """Mean of a loss over images, each counted once over all processes, without reading anything back per batch.

    torchmetrics' MeanMetric either waits for the device at every update, to look for NaN, or ignores the weights.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, losses: Tensor, counted: Tensor) -> None:
        """Add a batch.

        Args:
            losses: loss of each image (B,).
            counted: which of them to count (B,) bool.
        """
        self.total += torch.where(counted, losses, 0.0).sum()
        self.count += counted.sum()

    def compute(self) -> Tensor:
        """Mean loss, scalar."""
        return self.total / self.count
