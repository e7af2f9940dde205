"""Scoring a trained network on labelled images."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Literal

from polaformer.data.module import ClassificationDataModule
from polaformer.data.split import class_table
from polaformer.models.weights import WeightsInfo
from polaformer.recipe import DataConfig, TrainConfig
from polaformer.tasks.classification import ClassificationTask

from .folder import RunFolder
from .networks import load_classifier
from .recipes import read_recipe
from .trainer import build_trainer, quiet_lightning

logger = logging.getLogger("polaformer")


def evaluate(
    checkpoint: str | Path,
    *,
    split: Literal["validate", "test"] = "validate",
    data: str | Path | None = None,
    batch_size: int | None = None,
    machine: TrainConfig | None = None,
    progress: bool = True,
) -> dict[str, float | int]:
    """Score a checkpoint on the held-out or test images of a folder.

    Images are matched to the checkpoint's classes by folder name, whatever their order, and prepared as it says. Each
    readable image counts once, however many processes share the work.

    Args:
        checkpoint: weights file, .ckpt file, or run folder.
        split: 'validate' for the held-out images, 'test' for test/ (the held-out ones where there is none).
        data: folder of images, or 'digits'; None takes the data of the run folder the checkpoint lies in, with its
            split.
        batch_size: images a batch on each process; None takes the run's.
        machine: accelerator, devices, strategy and precision; None takes what the machine has, in 32 bits.
        progress: show a progress bar, where stdout is a terminal.

    Returns:
        top1 and top5 (shares, 0 to 1), loss (mean cross-entropy), num_images, num_classes, correct_top1, correct_top5.

    Raises:
        ValueError: no data is known, or a folder's classes are not the checkpoint's.
        FileNotFoundError: there is no such checkpoint.
    """
    if split not in ("validate", "test"):
        raise ValueError(f"split must be 'validate' or 'test', got {split!r}")
    model, info = load_classifier(checkpoint)
    config = evaluation_data(Path(checkpoint), info, data)
    if batch_size is not None:
        config = dataclasses.replace(config, batch_size=batch_size)
    images = ClassificationDataModule(config, seed=0, class_names=info.class_names)
    images.setup(split)
    task = ClassificationTask(model, len(info.class_names))
    with quiet_lightning():
        trainer = build_trainer(machine or TrainConfig(), progress=progress)
        if trainer.is_global_zero:
            logger.info("%s", class_table(images.split))
        run, stage = (trainer.validate, "val") if split == "validate" else (trainer.test, "test")
        scores = run(task, datamodule=images, verbose=False)[0]
    num_images = round(scores[f"{stage}_images"])
    if num_images == 0:
        raise ValueError(f"data must hold readable images to score, got none in {config.path!r}")
    return {
        "top1": scores[f"{stage}_top1"],
        "top5": scores[f"{stage}_top5"],
        "loss": scores[f"{stage}_loss"],
        "num_images": num_images,
        "num_classes": len(info.class_names),
        "correct_top1": round(scores[f"{stage}_top1"] * num_images),
        "correct_top5": round(scores[f"{stage}_top5"] * num_images),
    }


def evaluation_data(checkpoint: Path, info: WeightsInfo, data: str | Path | None) -> DataConfig:
    """The data section to score a checkpoint with: the run's where its folder says, prepared as the checkpoint says."""
    recipe_file = RunFolder(checkpoint if checkpoint.is_dir() else checkpoint.parent).recipe
    if recipe_file.is_file():
        config = read_recipe(recipe_file).data
    elif data is not None:
        config = DataConfig()
    else:
        raise ValueError(f"data must be given: there is no recipe.yaml beside {checkpoint}")
    return dataclasses.replace(
        config,
        path=config.path if data is None else str(data),
        img_size=info.img_size,
        in_chans=info.in_chans,
        mean=list(info.mean),
        std=list(info.std),
        interpolation=info.interpolation,
        crop_pct=info.crop_pct,
    )
