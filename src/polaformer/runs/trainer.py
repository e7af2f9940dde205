"""Lightning's Trainer as the commands use it: same code on one device or many, and quiet."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from polaformer.recipe import TrainConfig

from .checkpoints import AtomicCheckpointIO
from .progress import ProgressBar, on_terminal

PRECISIONS: dict[str, Literal["32-true", "64-true", "bf16-mixed", "16-mixed"]] = {
    "32": "32-true",
    "64": "64-true",
    "bf16": "bf16-mixed",
    "16": "16-mixed",
}

OTHERS_NOISE = (
    ".*does not have many workers.*",  # the recipe says how many
    ".*in eval mode at the start of training.*",  # frozen normalisation layers, on purpose
    ".*not resumable.*",  # the data module keeps its position, which Lightning looks for in the loader
    ".*LeafSpec.*",  # Lightning's own use of a deprecated torch class
    r".*lr_scheduler\.step\(\).*before.*optimizer\.step\(\).*",  # a first update that the loss scaler skipped
    ".*smaller than the logging interval.*",
    ".*Grad strides do not match bucket view strides.*",  # 1 × k × k kernels have strides that two layouts share
    ".*AMP with fp16 is not supported on CPU.*",  # an error of ours, not a change of precision
)
"""Warnings of Lightning and torch that tell a user of these commands nothing."""


def build_trainer(
    train: TrainConfig,
    *,
    max_epochs: int = 1,
    clip_grad: float | None = None,
    callbacks: Sequence[pl.Callback] = (),
    progress: bool = True,
) -> pl.Trainer:
    """Build the Trainer of a recipe.

    Args:
        train: precision, machine and accumulation.
        max_epochs: epochs to train, cool-down included.
        clip_grad: largest gradient norm; None for no clipping.
        callbacks: in the order their hooks run.
        progress: show a progress bar, where stdout is a terminal.

    Returns:
        A Trainer that logs nowhere and saves nothing by itself.

    Raises:
        ValueError: the machine lacks what is asked for, or precision 16 is asked for without a GPU.
    """
    bar = [ProgressBar(refresh_rate=5)] if progress and on_terminal() else []
    machine = processes(train.devices)
    if train.accelerator == "gpu" and not torch.cuda.is_available() and not torch.backends.mps.is_available():
        raise ValueError("train.accelerator must be cpu or auto on this machine, got gpu: torch finds none")
    if isinstance(machine["devices"], list) and (train.accelerator == "cpu" or not torch.cuda.is_available()):
        raise ValueError(f"train.devices must be auto or a number of processes without a GPU, got {train.devices!r}")
    trainer = pl.Trainer(
        accelerator=train.accelerator,
        strategy=train.strategy,
        precision=PRECISIONS[train.precision],
        max_epochs=max_epochs,
        accumulate_grad_batches=train.accumulate,
        gradient_clip_val=clip_grad,
        # Some CUDA backward passes (bicubic resizing) have no deterministic form: say so, do not stop.
        deterministic="warn" if train.deterministic else False,
        callbacks=[*bar, *callbacks],
        plugins=[AtomicCheckpointIO()],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=bool(bar),
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the data module's samplers know the processes
        **machine,
    )
    if trainer.precision != PRECISIONS[train.precision]:
        raise ValueError(f"train.precision must be 32, 64 or bf16 without a GPU, got {train.precision}")
    return trainer


def processes(devices: str) -> dict[str, Any]:
    """Lightning's `devices` and `num_nodes`: the recipe's, or torchrun's where it started this process.

    Args:
        devices: 'auto', a number of processes, or a list of GPU ids such as '[0, 2]' or '0,2'.

    Raises:
        ValueError: devices is none of these.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return {"devices": local, "num_nodes": int(os.environ["WORLD_SIZE"]) // local}
    wanted = devices.strip()
    if wanted == "auto" or (wanted.isdecimal() and int(wanted) > 0):
        return {"devices": int(wanted) if wanted.isdecimal() else wanted, "num_nodes": 1}
    numbers = [number.strip() for number in wanted.removeprefix("[").removesuffix("]").split(",")]
    if wanted.isdecimal() or not all(map(str.isdecimal, numbers)) or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"train.devices must be auto, a number of processes, or a list of GPUs such as [0, 2], got {devices!r}"
        )
    return {"devices": [int(number) for number in numbers], "num_nodes": 1}


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's tips and reports, and give torch's determinism settings back afterwards."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        for pattern in OTHERS_NOISE:
            warnings.filterwarnings("ignore", pattern)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
