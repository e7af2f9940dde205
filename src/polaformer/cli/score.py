"""`polaformer validate` and `polaformer test`: the numbers of a trained model on labelled images."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from polaformer.runs import evaluate
from polaformer_cli.console import say

from .messages import bars_on_stderr, check_folder


def run(args: argparse.Namespace) -> int:
    """Score the checkpoint and print top-1, top-5, loss and the number of images."""
    check_folder("--data", args.data)
    with bars_on_stderr():
        scores = evaluate(args.checkpoint, split=args.command, data=args.data, batch_size=args.batch_size)
    say(json.dumps(scores) if args.json else score_table(scores))
    return 0


def score_table(scores: Mapping[str, float | int]) -> str:
    """A line for each number."""
    images = scores["num_images"]
    lines = [f"top-1   {scores['top1']:7.2%}  ({scores['correct_top1']} of {images} images)"]
    if scores["num_classes"] > 5:  # of fewer classes, the right one is always among five
        lines.append(f"top-5   {scores['top5']:7.2%}")
    return "\n".join([*lines, f"loss    {scores['loss']:7.4f}"])
