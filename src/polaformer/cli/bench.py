"""`polaformer bench`: times of the operator and of models on this machine, checked, as a table, JSON and a picture."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch

from polaformer import bench
from polaformer.models.atomic import atomic_write
from polaformer_cli.console import complain, nearest, say
from polaformer_cli.parser import CommandFailure, UsageError

from .bench_picture import draw_times
from .bench_tables import crossover_lines, machine_lines, model_table, operator_table
from .describe import read_size
from .messages import check_target

DEFAULT_TOKENS = [16, 64, 256, 1024, 4096]
LEAST_ROUNDS = 7

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Results:
    """Everything measured, in the order measured."""

    timings: list[bench.Timing] = dataclasses.field(default_factory=list)
    models: list[tuple[bench.NetworkProblem, bench.NetworkTiming]] = dataclasses.field(default_factory=list)
    refused: list[str] = dataclasses.field(default_factory=list)
    """Why what failed its check was not timed."""


def run(args: argparse.Namespace) -> int:
    """Measure and report; exit status 1 where something failed its check."""
    check_options(args)
    with threads(args.threads):
        machine = bench.describe_machine()
        results = Results()
        for device in args.device:
            for dtype in args.dtype:
                measure(args, torch.device(device), getattr(torch, dtype), results)
        report(args, results, machine)
    for reason in results.refused:
        complain("polaformer bench", reason)
    return 1 if results.refused else 0


def check_options(args: argparse.Namespace) -> None:
    """Raise for what cannot be measured, and fill in the defaults that depend on other options."""
    for name in args.model:
        if not timm.is_model(name):
            hint = nearest(name, timm.list_models(), count=3) or "; timm.list_models() names them"
            raise UsageError(f"--model must be a timm model, got {name}{hint}")
    if args.rounds < LEAST_ROUNDS:
        raise UsageError(f"--rounds must be at least {LEAST_ROUNDS}, got {args.rounds}")
    if args.model and (args.tokens or args.picture):
        raise UsageError("--model must be given without --tokens and --picture, which are the operator's")
    if args.image_size and not args.model:
        raise UsageError("--image-size must be given with --model")
    for option, path in (("--output", args.output), ("--picture", args.picture)):
        if path is not None:
            check_target(option, path)
    args.device = args.device or ["cuda" if torch.cuda.is_available() else "cpu"]
    for device in args.device:
        kind, _, number = device.partition(":")
        count = torch.cuda.device_count() if kind == "cuda" else 0
        if device != "cpu" and not (count if device == "cuda" else number.isdecimal() and int(number) < count):
            raise UsageError(f"--device must be cpu or a CUDA device that is there, got {device}")
    args.tokens = sorted(set(args.tokens or DEFAULT_TOKENS))
    args.batch_size = args.batch_size or (8 if args.model else 1)
    args.image_size = read_size(args.image_size)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Give torch so many threads on the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(args: argparse.Namespace, device: torch.device, dtype: torch.dtype, results: Results) -> None:
    """Measure all that is asked for on one device in one dtype."""
    where = f"{str(dtype).removeprefix('torch.')} on {device}"
    try:
        if args.model:
            log.info("measuring %s, %s ...", ", ".join(args.model), where)
            problem = bench.NetworkProblem(args.image_size, args.batch_size, dtype, device)
            timed = bench.time_networks(args.model, problem, args.rounds, args.backend)
            results.models += [(problem, timing) for timing in timed]
            return
        contenders = [*map(bench.operator, args.backend), bench.published_formula(), bench.softmax()]
        for tokens in args.tokens:
            log.info("measuring %s tokens, %s ...", f"{tokens:,}", where)
            problem = bench.Problem(tokens, args.batch_size, args.heads, args.channels, dtype, device)
            timings, failures = bench.time_contenders(contenders, problem, args.rounds)
            results.timings += timings
            results.refused += map(str, failures)
    except bench.CheckFailure as failure:
        raise CommandFailure(str(failure), 1) from failure


def report(args: argparse.Namespace, results: Results, machine: dict[str, Any]) -> None:
    """Print the tables, and write the files that are asked for."""
    crossovers = bench.find_crossovers(results.timings)
    lines = machine_lines(machine)
    if results.timings:
        lines += ["", *operator_table(results.timings), "", *crossover_lines(crossovers, max(args.tokens))]
    if results.models:
        lines += ["", *model_table(results.models)]
    say("\n".join(lines))
    if args.output is not None:
        record = {"command": command_line(args), "machine": machine, **as_values(results, crossovers)}
        with atomic_write(Path(args.output)) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if args.picture is not None:
        draw_times(args.picture, results.timings, crossovers, machine_lines(machine))


def command_line(args: argparse.Namespace) -> str:
    """The command that measures the same again, with every default spelt out."""
    words = ["polaformer", "bench"]
    if args.model:
        words += ["--model", *args.model]
        words += ["--image-size", *map(str, args.image_size)] if args.image_size else []
    else:
        words += ["--tokens", *map(str, args.tokens), "--heads", str(args.heads), "--channels", str(args.channels)]
    words += ["--batch-size", str(args.batch_size), "--dtype", *args.dtype, "--device", *args.device]
    words += ["--backend", *args.backend, "--rounds", str(args.rounds), "--threads", str(torch.get_num_threads())]
    return shlex.join(words)


def as_values(results: Results, crossovers: list[bench.Crossover]) -> dict[str, Any]:
    """The results as plain values for JSON; every entry names its device and dtype."""
    return {
        "operator": [flat(timing, timing.problem) for timing in results.timings],
        "crossovers": [flat(crossover, crossover.problem) for crossover in crossovers],
        "models": [flat(timing, problem) for problem, timing in results.models],
        "refused": results.refused,
    }


def flat(result: Any, problem: bench.Problem | bench.NetworkProblem) -> dict[str, Any]:
    """A result's fields with those of its problem, of which the result may say one more exactly, as JSON takes them."""
    values = dataclasses.asdict(problem) | dataclasses.asdict(result)
    values.pop("problem", None)
    return values | {"dtype": str(problem.dtype).removeprefix("torch."), "device": str(problem.device)}
