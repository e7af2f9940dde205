"""The tables that `polaformer bench` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polaformer.bench import Crossover, NetworkProblem, NetworkTiming, Timing

from .tables import render_table, short, three_digits


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """What was measured on, with what, and when, in two lines."""
    versions = machine["versions"]
    gpus = [f"{name} (CUDA {versions['cuda']})" for name in dict.fromkeys(machine["gpus"])]
    cpu = f"{machine['cpu']} ({machine['instructions']}), {machine['cores']} cores, {machine['threads']} threads"
    software = [f"{name} {versions[name]}" for name in ("polaformer", "torch", "timm", "python")]
    return ["; ".join([*gpus, cpu]), f"{', '.join(software)}; {machine['date']}"]


def operator_table(timings: Sequence[Timing]) -> list[str]:
    """A line for each contender, pass and problem."""
    header = ["tokens", "pass", "", "ms min", "median", "max", "ratio min", "median", "max", "tokens/s", "memory"]
    lines: list[str] = []
    for group in dict.fromkeys((each.problem.device, each.problem.dtype) for each in timings):
        chosen = [each for each in timings if (each.problem.device, each.problem.dtype) == group]
        problem = chosen[0].problem
        title = (
            f"{dtype_name(problem)} on {problem.device}, batch {problem.batch_size}, {problem.heads} heads of "
            f"{problem.channels} channels; ratio: time over that of the {chosen[0].contender} in the same round"
        )
        rows = []
        for each in chosen:
            spreads = [each.seconds.minimum, each.seconds.median, each.seconds.maximum]
            ratio = [each.ratio.minimum, each.ratio.median, each.ratio.maximum]
            numbers = [three_digits(1e3 * value) for value in spreads] + [three_digits(value) for value in ratio]
            memory = [short(each.tokens_per_second), short(each.peak_bytes, "B")]
            rows.append([f"{each.problem.tokens:,}", each.pass_name, each.contender, *numbers, *memory])
        lines += [*([""] if lines else []), title, "", *render_table(header, rows, left=3)]
    return lines


def crossover_lines(crossovers: Sequence[Crossover], most_tokens: int) -> list[str]:
    """From how many tokens on the operator wins, a line for each pass, rival, dtype and device."""
    return [
        f"{dtype_name(each.problem)} on {each.problem.device}, {each.pass_name}: {crossover_text(each, most_tokens)}"
        for each in crossovers
    ]


def crossover_text(crossover: Crossover, most_tokens: int) -> str:
    """Where the operator starts to win, in words."""
    if crossover.tokens is None:
        return f"not faster than {crossover.contender} up to {most_tokens:,} tokens"
    start = "the fewest measured," if crossover.below_smallest else "about"
    return f"faster than {crossover.contender} from {start} {crossover.tokens:,} tokens on"


def model_table(models: Sequence[tuple[NetworkProblem, NetworkTiming]]) -> list[str]:
    """A line for each model and problem: latency, throughput, training."""
    header = [
        "model",
        "px",
        "batch",
        "pass",
        "ms min",
        "median",
        "max",
        "ratio min",
        "median",
        "max",
        "images/s",
        "memory",
    ]
    lines: list[str] = []
    for problem in dict.fromkeys(problem for problem, _ in models):
        rows = []
        chosen = [timing for each, timing in models if each == problem]
        for timing in chosen:
            passes = (("forward", timing.latency), ("forward", timing.throughput), ("training", timing.training))
            for name, pace in passes:
                times = [1e3 * pace.seconds.minimum, 1e3 * pace.seconds.median, 1e3 * pace.seconds.maximum]
                ratio = [pace.ratio.minimum, pace.ratio.median, pace.ratio.maximum]
                size = "x".join(map(str, timing.image_size))
                numbers = [three_digits(value) for value in (*times, *ratio, pace.images_per_second)]
                rows.append([timing.model, size, str(pace.batch_size), name, *numbers, short(pace.peak_bytes, "B")])
        title = (
            f"{dtype_name(problem)} on {problem.device}; ratio: time over that of {chosen[0].model} in the same round"
        )
        lines += [*([""] if lines else []), title, "", *render_table(header, rows, left=4)]
    return lines


def dtype_name(problem: Any) -> str:
    """The dtype of a problem as the command line names it."""
    return str(problem.dtype).removeprefix("torch.")
