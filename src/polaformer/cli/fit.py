"""`polaformer fit`: recipe and options become a run."""

from __future__ import annotations

import argparse
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import timm
from timm.optim import list_optimizers

from polaformer.recipe import Recipe
from polaformer_cli.console import nearest, say
from polaformer_cli.parser import CommandFailure, UsageError

from .messages import bars_on_stderr, check_folder, check_place, end_bar
from .recipes import Setting, dump_recipe, load_recipe, suggest_key

if TYPE_CHECKING:
    from polaformer.runs import RunResult

SHORT_OPTIONS = {
    "data": "data.path",
    "model": "model.name",
    "checkpoint": "model.checkpoint",
    "epochs": "train.epochs",
    "batch_size": "data.batch_size",
    "lr": "optim.lr",
    "precision": "train.precision",
    "seed": "train.seed",
    "out": "run.dir",
    "name": "run.name",
}
"""Options that are another name of a recipe key."""


def run(args: argparse.Namespace) -> int:
    """Train by the recipe the options describe, and say where the results are."""
    recipe = resolve_recipe(args)
    if args.print_recipe:
        say(dump_recipe(recipe))
        return 0
    check_model_name(recipe.model.name)
    check_folder("--data", args.data)
    check_place("--checkpoint", args.checkpoint)
    check_optimizer_name(recipe.optim.opt)
    result = train(recipe, args.resume)
    say(result_text(result))
    return 0


def train(recipe: Recipe, resume: str | None = None) -> RunResult:
    """Train with progress bars on stderr.

    Raises:
        CommandFailure: the run was stopped by a signal, or by a loss or gradient that is not finite.
    """
    # Imported here, because Lightning takes seconds that --print-recipe and a wrong key need not wait for.
    from polaformer.runs import NonFiniteError, fit

    try:
        with bars_on_stderr():
            result = fit(recipe, resume=resume)
    except NonFiniteError as error:
        end_bar()
        raise CommandFailure(f"stopped: {error}", status=1) from error
    except SystemExit:
        # Lightning leaves so on a Ctrl-C before the first step, and on a second one.
        end_bar()
        raise KeyboardInterrupt from None
    if result.interrupted_by is not None:
        end_bar()
        # 128 + number is what shells report for a program that a signal ended.
        status = 128 + signal.Signals[result.interrupted_by]
        raise CommandFailure(f"stopped by {result.interrupted_by}; go on with: {result.resume_command}", status)
    return result


def result_text(result: RunResult) -> str:
    """What to know after a run: its best epoch, its folder, and how to use it."""
    folder = shlex.quote(str(result.folder))
    best = "" if result.best_top1 is None else f"best top-1  {result.best_top1:.2%} (epoch {result.best_epoch})\n"
    return f"\n{best}run folder  {folder}\nuse it      polaformer predict IMAGE --checkpoint {folder}"


def resolve_recipe(args: argparse.Namespace) -> Recipe:
    """Make the recipe of a `fit` command: the file --config names or a fitting shipped one, then the options."""
    if args.unknown:
        raise UsageError(f"unknown option {args.unknown[0]}{suggest_option(args.unknown[0])}")
    settings = option_settings(args)
    recipe = load_recipe(base_recipe(args), settings)
    if (
        args.epochs is not None
        and args.resume is None
        and all(setting.key != "optim.warmup_epochs" for setting in settings)
    ):
        keep_warmup_share(recipe, load_recipe(base_recipe(args)).train.epochs)
    return recipe


def base_recipe(args: argparse.Namespace) -> str | Path | Recipe:
    """The recipe that the options change: that of --config, of the run to resume, or one that suits the data."""
    if args.resume is not None:
        if args.config is not None:
            raise UsageError("--resume goes on by the run's own recipe; leave out --config")
        for option in ("out", "name"):
            if getattr(args, option) is not None:
                raise UsageError(f"--resume goes on in the run's own folder; leave out --{option}")
        check_place("--resume", args.resume)
        return resumed_recipe(args.resume)
    if args.config is not None:
        return args.config
    return "digits" if args.data in (None, "digits") else "finetune"


def resumed_recipe(run: str) -> Recipe:
    """The recipe of a run to resume, from its checkpoint, which is whole whatever happened to the files beside it."""
    from polaformer.runs.checkpoints import STATE_KEY, RunState, find_checkpoint, read_checkpoint

    return RunState.from_dict(read_checkpoint(find_checkpoint(run))[STATE_KEY]).recipe


def option_settings(args: argparse.Namespace) -> list[Setting]:
    """The options as recipe settings, those given as --section.key last."""
    short = [
        Setting(key, text, shown="--" + option.replace("_", "-"))
        for option, key in SHORT_OPTIONS.items()
        if (text := getattr(args, option)) is not None
    ]
    return short + [Setting(key, text, shown=f"--{key}") for key, text in args.recipe_keys]


def suggest_option(word: str) -> str:
    """The recipe key an unknown option may have meant, as an option."""
    if word.replace("_", "-") == "--learning-rate":
        return "; did you mean --lr?"
    return suggest_key(word).replace("did you mean ", "did you mean --") or "; --help lists the options"


def keep_warmup_share(recipe: Recipe, planned_epochs: int) -> None:
    """Shorten or lengthen the warm-up with the training, so that --epochs 1 still reaches the peak rate."""
    if recipe.optim.warmup_epochs is not None:  # the default keeps its share by itself
        recipe.optim.warmup_epochs = round(recipe.optim.warmup_epochs * recipe.train.epochs / planned_epochs, 6)


def check_model_name(name: str) -> None:
    """Raise for a model timm does not know, naming the nearest it does."""
    if not timm.is_model(name):
        raise ValueError(f"model.name must be a timm model, got {name}{nearest(name, timm.list_models())}")


def check_optimizer_name(name: str) -> None:
    """Raise for an optimiser timm does not know, naming the nearest it does."""
    known = [str(each) for each in list_optimizers()]
    if name.lower() not in known:
        raise ValueError(f"optim.opt must be a timm optimiser, got {name}{nearest(name, known)}")
