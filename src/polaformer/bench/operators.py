"""Times of the operator and of what could stand in its place, over the number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from .checking import CheckFailure, check
from .contenders import Contender
from .memory import peak_bytes
from .timing import Spread, ratios, time_in_turn

FORWARD, TRAINING = "forward", "forward + backward"


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Problem:
    """Sizes and storage of one attention problem, keys as many as queries."""

    tokens: int
    batch_size: int = 1
    heads: int = 2
    channels: int = 64
    dtype: torch.dtype = torch.float32
    device: torch.device = _CPU

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
    """From how many tokens on the first contender beats another."""

    contender: str
    """The other one."""
    pass_name: str
    problem: Problem
    """The largest measured."""
    tokens: int | None
    """Between two measured counts, on straight lines in log-log scale; the smallest measured one where it wins there
    already; None where it does not win at the largest."""
    below_smallest: bool
    """Whether it wins at the smallest measured count already."""


def time_contenders(
    contenders: Sequence[Contender], problem: Problem, rounds: int = 7
) -> tuple[list[Timing], list[CheckFailure]]:
    """Check contenders against float64, then time those that are right in turn, forward alone and with backward.

    Args:
        contenders: what to time; the others are compared to the first.
        problem: sizes and storage.
        rounds: timed runs of each.

    Returns:
        The times of both passes, and what is wrong with those that were not timed.

    Raises:
        CheckFailure: the first is wrong; none is timed then.
    """
    inputs = problem.inputs()
    errors = {contenders[0].name: check(contenders[0], inputs)}
    failures = []
    for contender in contenders[1:]:
        try:
            errors[contender.name] = check(contender, inputs)
        except CheckFailure as failure:
            failures.append(failure)
    contenders = [contender for contender in contenders if contender.name in errors]
    timings = []
    for pass_name, make in ((FORWARD, forward_call), (TRAINING, training_call)):
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
    return timings, failures


def find_crossovers(timings: Sequence[Timing], rival: str = "softmax") -> list[Crossover]:
    """Find from how many tokens on a rival's median time is above the first contender's, for each pass, device and dtype.

    Args:
        timings: of problems that differ in tokens, device and dtype alone.
        rival: its name.
    """
    groups: dict[tuple[object, ...], list[tuple[Timing, Timing]]] = {}
    first: dict[tuple[Problem, str], Timing] = {}
    for each in timings:
        own = first.setdefault((each.problem, each.pass_name), each)
        if each.contender == rival:
            group = groups.setdefault((each.problem.device, each.problem.dtype, each.pass_name), [])
            group.append((each, own))
    return [_crossover(sorted(group, key=lambda pair: pair[0].problem.tokens)) for group in groups.values()]


def _crossover(measured: list[tuple[Timing, Timing]]) -> Crossover:
    """Find it among timings of a rival and of the first contender, by rising tokens."""
    counts = [rival.problem.tokens for rival, _ in measured]
    advantages = [log(rival.seconds.median / own.seconds.median) for rival, own in measured]
    behind = [index for index, advantage in enumerate(advantages) if advantage <= 0]
    if not behind:
        tokens = counts[0]
    elif behind[-1] == len(measured) - 1:
        tokens = None
    else:
        before, after = behind[-1], behind[-1] + 1
        share = advantages[before] / (advantages[before] - advantages[after])
        tokens = round(counts[before] * (counts[after] / counts[before]) ** share)
    last, _ = measured[-1]
    return Crossover(last.contender, last.pass_name, last.problem, tokens, not behind)


def forward_call(contender: Contender, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Callable[[], object]:
    """Return a call of the forward pass alone."""

    def run() -> Tensor:
        with torch.no_grad():
            return contender.attend(*inputs)

    return run


def training_call(contender: Contender, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Callable[[], object]:
    """Return a call of both passes: the gradients of all inputs."""
    q, k, v, power = leaves = [x.detach().requires_grad_() for x in inputs]
    grad = torch.ones_like(inputs[2])

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(contender.attend(q, k, v, power), leaves, grad, allow_unused=True)

    return run
