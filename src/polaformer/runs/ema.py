"""Exponential moving average of the weights."""

from __future__ import annotations

from pytorch_lightning.callbacks import EMAWeightAveraging
from torch import nn


class EmaCallback(EMAWeightAveraging):
    """Averages the weights after every update: average ← decay · average + (1 - decay) · weights.

    The average starts as a copy of the weights after the first update. It stands in for them during validation and
    after training, and checkpoints hold both, so a resumed run continues it exactly.

    Args:
        decay: in (0, 1).

    Raises:
        ValueError: decay lies outside.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"train.ema_decay must lie between 0 and 1, got {decay}")
        super().__init__(decay=decay)

    @property
    def averaged_model(self) -> nn.Module:
        """The network with the averaged weights, from the start of training on."""
        assert self._average_model is not None, "the average exists from setup on"
        network = self._average_model.module.model
        assert isinstance(network, nn.Module)
        return network
