"""A run small enough for tests: coloured squares in folders, a timm transformer of three hundred thousand weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from PIL import Image

from polaformer.recipe import DataConfig, ModelConfig, OptimConfig, Recipe, RunConfig, TrainConfig

CLASSES = ("amber", "blue", "coral")


def write_images(root: Path, per_class: int, classes: tuple[str, ...] = CLASSES, seed: int = 0) -> Path:
    """Write noisy squares, one hue a class, as root/class/number.png."""
    generator = np.random.default_rng(seed)
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            pixels = generator.integers(0, 160, (13, 11, 3), dtype=np.uint8)
            pixels[:, :, number % 3] += 90
            Image.fromarray(pixels).save(root / name / f"{index:03d}.png")
    return root


def tiny_recipe(images: Path, runs: Path, **train: Any) -> Recipe:
    """Everything random switched on: mixing, drop path, crops, flips, jitter, average of the weights."""
    settings: dict[str, Any] = {
        "epochs": 3,
        "accelerator": "cpu",
        "mixup": 0.3,
        "cutmix": 0.7,
        "ema_decay": 0.9,
        "checkpoint_every": None,
        **train,
    }
    return Recipe(
        model=ModelConfig(name="test_vit", drop_path_rate=0.2),
        data=DataConfig(path=str(images), img_size=32, batch_size=7, num_workers=0, val_fraction=0.3),
        optim=OptimConfig(lr=2e-3, warmup_epochs=0.5, clip_grad=1.0),
        train=TrainConfig(**settings),
        run=RunConfig(dir=str(runs)),
    )


class Recorder(pl.Callback):
    """Keeps the loss of every step, and does something at one of them."""

    def __init__(self, at: int | None = None, action=None) -> None:
        self.losses: list[float] = []
        self._at, self._action = at, action

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        self.losses.append(float(outputs["train_loss"]))
        if trainer.global_step == self._at:
            self._action()
