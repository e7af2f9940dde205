"""`polaformer describe`: what a model costs, part by part, without running it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from typing import Any

import timm
import torch
import yaml
from torch import nn

import polaformer.models  # registers the pola_* models with timm  # noqa: F401
from polaformer.bench import Cost, count_cost
from polaformer_cli.console import complain, nearest, say
from polaformer_cli.parser import UsageError

from .tables import render_table, short

NOT_COUNTED = (
    "Multiply-adds: matrix products and convolutions of one forward pass. Not counted: what is done element by element\n"
    "(activations, norms, softmax, pooling, resizing). Activations: what training keeps for backward, without weights."
)
DEFAULT_SIZE = 224


def run(args: argparse.Namespace) -> int:
    """Print the table or JSON; exit status 1 where the total is withheld."""
    model, channels, size = load_model(args.model, read_size(args.image_size), read_arguments(args.model_args))
    try:
        cost = count_cost(model, (args.batch_size, channels, *size))
    except Exception as error:  # models refuse sizes in every way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"--image-size must be one that {args.model} takes, got {size[0]} {size[1]}: {reason}"
        ) from error
    say(
        json.dumps(as_values(args.model, size, args.batch_size, cost), indent=2)
        if args.json
        else "\n".join(
            [f"{args.model}, {size[0]}x{size[1]} px, batch {args.batch_size}", "", *cost_table(cost), "", NOT_COUNTED]
        )
    )
    if cost.uncounted:
        operators = ", ".join(f"{name} ({count} times)" for name, count in cost.uncounted.items())
        complain("polaformer describe", f"warning: no total: nothing is known of what {operators} multiplies")
    return 1 if cost.uncounted else 0


def read_size(numbers: list[int] | None) -> tuple[int, int] | None:
    """Read --image-size: one number for a square, or height and width."""
    if numbers is not None and len(numbers) > 2:
        raise UsageError(f"--image-size must be one number or height and width, got {' '.join(map(str, numbers))}")
    return None if numbers is None else (numbers[0], numbers[-1])


def read_arguments(text: str | None) -> dict[str, Any]:
    """Read --model-args, a mapping in YAML."""
    try:
        arguments = yaml.safe_load(text or "{}")
    except yaml.YAMLError:
        arguments = None
    if not isinstance(arguments, dict):
        raise UsageError(f"--model-args must be a mapping such as '{{attn_type: LLSS}}', got {text!r}")
    return arguments


def load_model(
    name: str, size: tuple[int, int] | None, arguments: dict[str, Any]
) -> tuple[nn.Module, int, tuple[int, int]]:
    """Build a timm model without memory for its weights, or load a trained one; with its image channels and size.

    Raises:
        UsageError: there is neither, or the model does not take the arguments.
    """
    if timm.is_model(name):
        return probe_model(name, size, arguments)
    if not os.path.lexists(name):
        hint = nearest(name, timm.list_models(), count=3) or "; timm.list_models() names them"
        raise UsageError(f"MODEL must be a timm model, or a run folder or a file of one, got {name}{hint}")
    if arguments:
        raise UsageError(f"--model-args must be left out with a trained model, which has its own, got {arguments}")
    # Imported here: it brings all that training needs, and models by name do not.
    from polaformer.runs.networks import load_classifier

    model, info = load_classifier(name)
    return model, info.in_chans, size or (info.img_size, info.img_size)


def probe_model(
    name: str, size: tuple[int, int] | None, arguments: dict[str, Any]
) -> tuple[nn.Module, int, tuple[int, int]]:
    """Build a registered model on the meta device, for images of `size` where its tables depend on that."""
    try:
        with torch.device("meta"):
            model: Any = timm.create_model(name, **arguments).eval()
            if size is not None and hasattr(model, "set_input_size"):
                model = timm.create_model(name, **{**arguments, "img_size": size}).eval()
    except Exception as error:  # a model may stumble over a wrong argument anywhere
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"--model-args must be arguments of {name}, got {arguments}: {reason}") from error
    channels, *published = (getattr(model, "pretrained_cfg", None) or {}).get("input_size") or (
        3,
        DEFAULT_SIZE,
        DEFAULT_SIZE,
    )
    built_for = size or arguments.get("img_size") or published
    height, width = (built_for, built_for) if isinstance(built_for, int) else built_for
    return model, arguments.get("in_chans", channels), (height, width)


def cost_table(cost: Cost) -> list[str]:
    """The lines of the table: a part each, then the sums."""
    header = ["part", "attention", "tokens", "keys", "parameters", "multiply-adds", "activations"]
    rows = [
        [
            part.name,
            part.attention or "-",
            "-" if part.tokens is None else f"{part.tokens:,}",
            "-" if part.keys is None else f"{part.keys:,}",
            short(part.parameters),
            short(part.multiply_adds),
            short(part.activation_bytes, "B"),
        ]
        for part in cost.parts
    ]
    sums = [short(cost.parameters), short(cost.multiply_adds), short(cost.activation_bytes, "B")]
    return render_table(header, [*rows, ["total", "", "", "", *sums]], left=2)


def as_values(name: str, size: tuple[int, int], batch_size: int, cost: Cost) -> dict[str, Any]:
    """The same as plain values for JSON; what is withheld is null."""
    return {"model": name, "image_size": list(size), "batch_size": batch_size, **dataclasses.asdict(cost)}
