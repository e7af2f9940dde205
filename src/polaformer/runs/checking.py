"""What is wrong with a recipe, as far as that can be known before the first image is listed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import timm
from timm.optim import list_optimizers

from polaformer.models._reading import read_state_dict
from polaformer.recipe import OptimConfig, Recipe

from .networks import probe_network
from .trainer import build_trainer, quiet_lightning


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, with or without the ends."""

    low: float
    high: float = math.inf
    with_low: bool = True
    with_high: bool = True

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.with_low else value > self.low
        below = value <= self.high if self.with_high else value < self.high
        return above and below

    def __str__(self) -> str:
        text = f"{'at least' if self.with_low else 'above'} {self.low}"
        return text if self.high == math.inf else f"{text} and {'at most' if self.with_high else 'below'} {self.high}"


SHARE = Range(0, 1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, with_low=False)
AT_LEAST_ONE = Range(1)

RANGES = {
    "model.drop_path_rate": Range(0, 1, with_high=False),
    "data.val_fraction": Range(0, 1, with_low=False),
    "data.img_size": Range(1, 8192),
    "data.batch_size": AT_LEAST_ONE,
    "data.num_workers": NOT_NEGATIVE,
    "data.std": POSITIVE,
    "data.crop_pct": Range(0.1, 1),
    "data.scale": Range(0, 1, with_low=False),
    "data.ratio": POSITIVE,
    "data.hflip": SHARE,
    "data.vflip": SHARE,
    "data.color_jitter": NOT_NEGATIVE,
    "data.reprob": SHARE,
    "data.max_bad_fraction": SHARE,
    "optim.lr": POSITIVE,
    "optim.lr_batch": AT_LEAST_ONE,
    "optim.weight_decay": NOT_NEGATIVE,
    "optim.betas": Range(0, 1, with_high=False),
    "optim.eps": POSITIVE,
    "optim.layer_decay": Range(0, 1, with_low=False),
    "optim.clip_grad": POSITIVE,
    "optim.warmup_epochs": NOT_NEGATIVE,
    "optim.warmup_lr": NOT_NEGATIVE,
    "optim.min_lr": NOT_NEGATIVE,
    "optim.cooldown_epochs": NOT_NEGATIVE,
    "train.epochs": AT_LEAST_ONE,
    "train.max_steps": AT_LEAST_ONE,
    "train.seed": NOT_NEGATIVE,
    "train.accumulate": AT_LEAST_ONE,
    "train.mixup": NOT_NEGATIVE,
    "train.cutmix": NOT_NEGATIVE,
    "train.mixup_switch_prob": SHARE,
    "train.smoothing": Range(0, 1, with_high=False),
    "train.ema_decay": Range(0, 1, with_low=False, with_high=False),
    "train.checkpoint_every": AT_LEAST_ONE,
}
"""What each number of a key may be; null is no number."""


def check_recipe(recipe: Recipe, *, initial_weights: bool = True) -> None:
    """Raise for the first key that no run could go by.

    Args:
        recipe: any recipe.
        initial_weights: also look for the weights the run starts from, which a resumed one has no need of.

    Raises:
        ValueError: names the key, what it must be and what it was.
        FileNotFoundError: model.checkpoint is not there.
    """
    check_ranges(recipe)
    check_model(recipe, initial_weights)
    check_optimizer(recipe.optim)
    with quiet_lightning():
        build_trainer(recipe.train, progress=False)


def check_ranges(recipe: Recipe) -> None:
    """Raise ValueError for the first key out of its range, or not a number."""
    for key, allowed in RANGES.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(recipe, section), name)
        numbers = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        if not all(number in allowed and math.isfinite(number) for number in numbers):
            raise ValueError(f"{key} must be {allowed}, got {value}")
    for key in ("scale", "ratio"):
        low, high = getattr(recipe.data, key)
        if low > high:
            raise ValueError(f"data.{key} must be a smaller and a larger number, got {low} and {high}")
    if recipe.data.in_chans not in (1, 3):
        raise ValueError(f"data.in_chans must be 1 (grey) or 3 (RGB), got {recipe.data.in_chans}")


def check_model(recipe: Recipe, initial_weights: bool) -> None:
    """Raise when the network cannot be built, or its weights cannot be there."""
    model = recipe.model
    network = probe_network(model, recipe.data.in_chans)
    if not initial_weights:
        return
    if model.checkpoint and model.pretrained:
        raise ValueError("model.checkpoint and model.pretrained must not both be given")
    if model.checkpoint and not hasattr(network, "table_grids"):
        raise ValueError(
            f"model.checkpoint must be null for {model.name}, got {model.checkpoint}: only pola_* models read files"
        )
    if model.checkpoint and not Path(model.checkpoint).exists():
        raise FileNotFoundError(f"model.checkpoint must be an existing file, got {model.checkpoint}")
    if model.checkpoint:
        read_state_dict(model.checkpoint)  # raises where that is no checkpoint
    published = timm.get_pretrained_cfg(model.name)
    if model.pretrained and not (published and published.has_weights):
        raise ValueError(
            f"model.pretrained must be false for {model.name}, of which no weights can be downloaded; "
            "a file of them can be given as model.checkpoint"
        )


def check_optimizer(optim: OptimConfig) -> None:
    """Raise ValueError for an optimiser timm lacks, or rates that do not go together."""
    if optim.opt.lower() not in list_optimizers():
        raise ValueError(f"optim.opt must be a timm optimiser such as adamw, sgd or lamb, got {optim.opt!r}")
    if optim.sched == "cosine" and optim.min_lr > optim.lr:
        raise ValueError(f"optim.min_lr must be at most optim.lr = {optim.lr}, got {optim.min_lr}")
