"""Times of the operator and of what could stand in its place, over the number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log

import torch
from torch import Tensor

from .checking import check
from .contenders import Contender
from .memory import peak_bytes
from .timing import Spread, ratios, time_in_turn

FORWARD, TRAINING = "forward", "forward + backward"


@dataclass(frozen=True)
class Problem:
    """Sizes and storage of one attention problem, keys as many as queries."""

    tokens: int
    batch_size: int = 1
    heads: int = 2
    channels: int = 64
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return normally distributed q, k, v and exponents from 1 to 5, as layers have them, in float32."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch_size, self.heads, self.tokens, self.channels)
        q, k, v = (torch.randn(shape, generator=generator).to(self.device, self.dtype) for _ in range(3))
        return q, k, v, (1 + 4 * torch.rand(self.heads, self.channels, generator=generator)).to(self.device)


@dataclass(frozen=True)
class Timing:
    """What one contender took for one pass of one problem."""

    contender: str
    pass_name: str
    problem: Problem
    seconds: Spread
    ratio: Spread
    """How many times as long as the first contender, round by round."""
    tokens_per_second: float
    """Of the median time."""
    peak_bytes: int
    """Above inputs."""
    error: float
    """Of the output, relative to its largest value, against float64."""


@dataclass(frozen=True)
class Crossover:
    """From how many tokens on the operator beats another contender."""

    contender: str
    pass_name: str
    tokens: int | None
    """Between two measured counts, on straight lines in log-log scale; the smallest measured one where it beats it there
    already; None where it does not at the largest."""
    below_smallest: bool


def time_contenders(contenders: Sequence[Contender], problem: Problem, rounds: int = 7) -> list[Timing]:
    """Check contenders against float64, then time them in turn, forward alone and with backward.

    Args:
        contenders: what to time; the others are compared to the first.
        problem: sizes and storage.
        rounds: timed runs of each.

    Raises:
        CheckFailure: one is wrong; none is timed then.
    """
    inputs = problem.inputs()
    errors = {contender.name: check(contender, inputs) for contender in contenders}
    timings = []
    for pass_name, make in ((FORWARD, _forward), (TRAINING, _training)):
        functions = {contender.name: make(contender, inputs) for contender in contenders}
        seconds = time_in_turn(functions, rounds, problem.device)
        for name, function in functions.items():
            spread = Spread.of(seconds[name])
            timings.append(
                Timing(
                    name,
                    pass_name,
                    problem,
                    spread,
                    ratios(seconds, name, contenders[0].name),
                    problem.batch_size * problem.tokens / spread.median,
                    peak_bytes(function, problem.device),
                    errors[name],
                )
            )
    return timings


def find_crossover(timings: Sequence[Timing], pass_name: str, rival: str) -> Crossover:
    """Find from how many tokens on a rival takes longer than the first contender.

    Args:
        timings: of problems that differ in tokens alone.
        pass_name: FORWARD or TRAINING.
        rival: its name.
    """
    measured = sorted(
        (each.problem.tokens, each.ratio.median)
        for each in timings
        if (each.pass_name, each.contender) == (pass_name, rival)
    )
    slower = [index for index, (_, ratio) in enumerate(measured) if ratio <= 1]
    if not slower:
        return Crossover(rival, pass_name, measured[0][0] if measured else None, bool(measured))
    if slower[-1] == len(measured) - 1:
        return Crossover(rival, pass_name, None, False)
    (tokens, ratio), (next_tokens, next_ratio) = measured[slower[-1] : slower[-1] + 2]
    share = -log(ratio) / (log(next_ratio) - log(ratio))
    return Crossover(rival, pass_name, round(exp(log(tokens) + share * (log(next_tokens) - log(tokens)))), False)


def _forward(contender: Contender, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Callable[[], object]:
    def run() -> Tensor:
        with torch.no_grad():
            return contender.attend(*inputs)

    return run


def _training(contender: Contender, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Callable[[], object]:
    q, k, v, power = leaves = [x.detach().requires_grad_() for x in inputs]
    grad = torch.ones_like(inputs[2])

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(contender.attend(q, k, v, power), leaves, grad, allow_unused=True)

    return run
