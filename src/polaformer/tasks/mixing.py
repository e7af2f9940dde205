"""Mixup and CutMix of whole batches, of any size."""

from __future__ import annotations

import torch
from timm.data.mixup import Mixup
from torch import Tensor

from polaformer.recipe import TrainConfig


class BatchMixer:
    """timm's Mixup and CutMix in batch mode: image i is mixed with image B - 1 - i, all with one weight.

    The draws come from NumPy's global generator. In an odd batch the middle image meets itself.

    Args:
        train: the recipe's training section: mixup, cutmix, mixup_switch_prob and smoothing.
        num_classes: number of classes C.

    Call: images (B, channels, height, width) and labels (B,) int64 give mixed images of the same shape, in new memory,
    and targets (B, C) that sum to one.

    Source: Zhang et al., mixup, 2018; Yun et al., CutMix, 2019; `timm.data.Mixup`.
    """

    def __init__(self, train: TrainConfig, num_classes: int) -> None:
        self.mixup = Mixup(
            mixup_alpha=train.mixup,
            cutmix_alpha=train.cutmix,
            switch_prob=train.mixup_switch_prob,
            label_smoothing=train.smoothing,
            num_classes=num_classes,
        )

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix one batch."""
        size = len(images)
        middle = size // 2
        # timm mixes in place and pairs from both ends of an even batch: a second copy of the middle image makes any
        # batch even, and indexing gives the memory of our own.
        order = torch.arange(size, device=images.device)
        if size % 2:
            order = torch.cat([order[: middle + 1], order[middle:]])
        mixed, targets = self.mixup(images[order], labels[order])
        if size % 2:
            mixed = torch.cat([mixed[:middle], mixed[middle + 1 :]])
            targets = torch.cat([targets[:middle], targets[middle + 1 :]])
        return mixed, targets
