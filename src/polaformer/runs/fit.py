"""Training: a recipe becomes a run folder."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytorch_lightning as pl
import timm

from polaformer.data.module import ClassificationDataModule
from polaformer.data.split import class_table
from polaformer.models.weights import WeightsInfo
from polaformer.notices import warn_user
from polaformer.recipe import Recipe
from polaformer.tasks.classification import ClassificationTask
from polaformer.tasks.randomness import seed_generators
from polaformer.tasks.schedule import inert_settings, total_epochs, warmup_epochs

from .checking import check_recipe
from .checkpoints import STATE_KEY, CheckpointCallback, RunState, find_checkpoint, read_checkpoint
from .ema import EmaCallback
from .folder import FolderCallback, RunFolder, check_name_is_free
from .guard import NonFiniteGuard
from .history import HistoryCallback
from .networks import build_network, describe_network
from .progress import EpochLines, on_terminal
from .recipes import CHANGEABLE, changed_keys
from .stopping import RunInterrupted, StoppingCallback
from .timing import DataWaitCallback
from .trainer import build_trainer, quiet_lightning

logger = logging.getLogger("polaformer")


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind."""

    folder: Path
    """The run folder."""
    finished: bool
    """False when a signal ended the run."""
    steps: int
    """Optimiser updates done, over all sessions of the run."""
    best_top1: float | None
    """Highest top-1 on the held-out images, 0 to 1; None before the first evaluation."""
    best_epoch: int | None
    """Its epoch, from 1."""
    interrupted_by: str | None
    """Name of the signal that ended the run, e.g. SIGINT."""

    @property
    def best_weights(self) -> Path:
        """Weights of the best epoch, with class names and preprocessing."""
        return RunFolder(self.folder).best_weights

    @property
    def resume_command(self) -> str:
        """The command line that continues this run."""
        return f"polaformer fit --resume {shlex.quote(str(self.folder))}"


def fit(
    recipe: Recipe | None = None,
    *,
    resume: str | Path | None = None,
    callbacks: Sequence[pl.Callback] = (),
    progress: bool = True,
) -> RunResult:
    """Train a classifier by a recipe, or go on with a run that was interrupted.

    On the CPU a resumed run computes, bit for bit, what the uninterrupted one would have.

    Args:
        recipe: the run; None with `resume` takes the run's own.
        resume: folder of the run, or one of its .ckpt files.
        callbacks: further Lightning callbacks, run before the library's own.
        progress: show a progress bar where stdout is a terminal, else log a line an epoch.

    Returns:
        Folder and best score.

    Raises:
        ValueError: a key of the recipe is wrong; there is nothing to resume; the run to resume is finished, or the
            recipe, images or number of processes differ from its.
        NonFiniteError: a loss or gradient was NaN or infinite.
        OSError: a file could not be written.
    """
    if resume is None and recipe is None:
        raise ValueError("recipe must be given when there is nothing to resume")
    checkpoint = None if resume is None else find_checkpoint(resume)
    plan = make_plan(recipe, checkpoint)
    recipe = plan.recipe
    files = FolderCallback(recipe, plan.info.class_names, None if checkpoint is None else RunFolder(checkpoint.parent))
    timing = DataWaitCallback(recipe.data.num_workers)
    ema = None if recipe.train.ema_decay is None else EmaCallback(recipe.train.ema_decay)
    checkpoints = CheckpointCallback(files, recipe, plan.info, plan.data.num_train, ema)
    stopping = StoppingCallback(checkpoints, recipe.train.max_steps)
    history = HistoryCallback(files, timing)
    # In this order: what a checkpoint holds must be up to date before it is written, and waiting is timed last.
    ours = [
        files,
        *([] if ema is None else [ema]),
        NonFiniteGuard(),
        history,
        *([EpochLines(history)] if progress and not on_terminal() else []),
        checkpoints,
        stopping,
        timing,
    ]
    with quiet_lightning():
        trainer = build_trainer(
            recipe.train,
            max_epochs=total_epochs(recipe.optim, recipe.train.epochs),
            clip_grad=recipe.optim.clip_grad,
            callbacks=[*callbacks, *ours],
            progress=progress,
        )
        if plan.state is not None and plan.state.world_size != trainer.world_size:
            raise ValueError(
                f"a resumed run must use as many processes as before, {plan.state.world_size}, got {trainer.world_size}"
            )
        if trainer.is_global_zero:  # only now, when nothing is left that could be wrong with the arguments
            logger.info("%s", class_table(plan.data.split))
        try:
            trainer.fit(plan.task, datamodule=plan.data, ckpt_path=None if checkpoint is None else str(checkpoint))
        except (RunInterrupted, RuntimeError):
            if stopping.stopped_by is None:
                raise
        finally:
            files.release()
            plan.data.teardown()  # Lightning leaves the loader processes alone when a run does not end by itself
    scored = checkpoints.best_epoch >= 0
    return RunResult(
        folder=files.folder.path,
        finished=stopping.stopped_by is None,
        steps=trainer.global_step,
        best_top1=checkpoints.best_top1 if scored else None,
        best_epoch=checkpoints.best_epoch + 1 if scored else None,
        interrupted_by=stopping.stopped_by,
    )


@dataclass(frozen=True)
class Plan:
    """Everything of a run that does not depend on the machine."""

    recipe: Recipe
    """With every key resolved."""
    data: ClassificationDataModule
    info: WeightsInfo
    task: ClassificationTask
    state: RunState | None
    """Of the checkpoint to resume."""


def make_plan(recipe: Recipe | None, checkpoint: Path | None) -> Plan:
    """List the images and build the network of a recipe, and check that a checkpoint can be resumed under it."""
    state = None if checkpoint is None else RunState.from_dict(read_checkpoint(checkpoint)[STATE_KEY])
    if state is not None:
        recipe = recipe or state.recipe
    assert recipe is not None, "a recipe or a checkpoint is given"
    check_recipe(recipe, initial_weights=state is None)
    if state is None:
        check_name_is_free(recipe)
    data = prepare_data(recipe)
    recipe = resolve(recipe, data, state)
    if state is not None:
        check_same_run(state, recipe)
    for note in inert_settings(recipe.optim, recipe.train.epochs):
        warn_user(note)
    data.setup("fit")
    if data.num_val == 0:
        raise ValueError(f"data.path must hold images to evaluate on, got none held out in {recipe.data.path!r}")
    if state is not None:
        check_same_images(state, data)
    info = describe_network(recipe.model, data)
    data.check_labels(len(info.class_names))
    seed_generators(recipe.train.seed)
    task = ClassificationTask(
        build_network(recipe.model, info, initial_weights=state is None),
        len(info.class_names),
        optim=recipe.optim,
        train=recipe.train,
        batch_size=recipe.data.batch_size,
        freeze=recipe.model.freeze,
    )
    return Plan(recipe, data, info, task, state)


def prepare_data(recipe: Recipe) -> ClassificationDataModule:
    """The images of a recipe, normalised as its model expects; nothing is listed yet."""
    data = ClassificationDataModule(recipe.data, seed=recipe.train.seed)
    pretrained_cfg = timm.get_pretrained_cfg(recipe.model.name)
    assert pretrained_cfg is not None, "check_recipe has found the model"
    data.resolve_preprocessing(pretrained_cfg.to_dict())
    return data


def resolve(recipe: Recipe, data: ClassificationDataModule, state: RunState | None) -> Recipe:
    """The recipe with mean, standard deviation and warm-up filled in; a resumed run keeps its warm-up."""
    preprocessing = data.preprocessing
    optim = recipe.optim if recipe.optim.warmup_epochs is not None or state is None else state.recipe.optim
    return dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, mean=list(preprocessing.mean), std=list(preprocessing.std)),
        optim=dataclasses.replace(recipe.optim, warmup_epochs=warmup_epochs(optim, recipe.train.epochs)),
    )


def check_same_run(state: RunState, recipe: Recipe) -> None:
    """Raise ValueError when a run cannot go on under this recipe, or is finished."""
    changes = changed_keys(state.recipe, recipe)
    if changes:
        key, old, new = changes[0]
        raise ValueError(
            f"a resumed run must keep {key} = {old!r}, got {new!r}; only {', '.join(CHANGEABLE)} may change"
        )
    epochs = recipe.train.epochs
    cool_down = total_epochs(recipe.optim, epochs) - epochs
    if state.epoch >= epochs + cool_down:
        shown = f" and {cool_down} of cool-down" if cool_down else ""
        raise ValueError(
            f"train.epochs must be above {state.epoch - cool_down} to go on, got {epochs}: "
            f"the run has done {state.epoch - cool_down} epochs{shown}"
        )
    limit = recipe.train.max_steps
    if limit is not None and state.updates >= limit:
        raise ValueError(
            f"train.max_steps must be above {state.updates} to go on, got {limit}: "
            f"the run has done {state.updates} updates"
        )


def check_same_images(state: RunState, data: ClassificationDataModule) -> None:
    """Raise ValueError when the images are not those a run started with."""
    if data.class_names != state.info.class_names or data.num_train != state.num_train:
        raise ValueError(
            f"a resumed run must find the images it started with: {state.num_train} to train on in "
            f"{len(state.info.class_names)} classes, got {data.num_train} in {len(data.class_names)} "
            f"at {data.config.path}"
        )
