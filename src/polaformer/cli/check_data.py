"""`polaformer check-data`: what a folder of images holds, and what is wrong with it."""

from __future__ import annotations

import argparse
import dataclasses
import json

from polaformer.data.check import DataReport, check_data
from polaformer_cli.console import say

from .messages import check_folder


def run(args: argparse.Namespace) -> int:
    """Print the report; exit status 1 where it holds errors."""
    check_folder("PATH", args.path)
    report = check_data(args.path)
    say(json.dumps(report_values(report), indent=2) if args.json else report.render())
    return 0 if report.ok else 1


def report_values(report: DataReport) -> dict[str, object]:
    """The report as plain values: path, ok, class names, images by role, problems."""
    split = report.split
    roles = {} if split is None else {"train": split.train, "val": split.val, "test": split.test}
    return {
        "path": report.path,
        "ok": report.ok,
        "class_names": [] if split is None else split.class_names,
        "num_images": {role: len(images) for role, images in roles.items() if images is not None},
        "problems": [dataclasses.asdict(problem) for problem in report.problems],
    }
