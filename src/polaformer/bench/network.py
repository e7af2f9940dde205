"""Times of whole networks: the latency of one image, the throughput of many, the memory of both passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn

import polaformer.models  # registers the pola_* models with timm  # noqa: F401
from polaformer.layers import PolaAttention, PolaLinearAttention

from .checking import CheckFailure
from .memory import peak_bytes
from .timing import Spread, ratios, time_in_turn

BOUNDS = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest error of the logits, relative to the largest logit."""


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class NetworkProblem:
    """Images and arithmetic; float16 and bfloat16 stand for autocast, weights stay in float32."""

    image_size: tuple[int, int] | None = None
    """Pixels (height, width); None for each network's own."""
    batch_size: int = 8
    """Images of the throughput."""
    dtype: torch.dtype = torch.float32
    device: torch.device = _CPU


@dataclass(frozen=True)
class Pace:
    """How fast a network runs over a number of images, and the memory it needs for it."""

    batch_size: int
    seconds: Spread
    ratio: Spread
    """How many times as long as the first network, round by round."""
    images_per_second: float
    """Of the median time."""
    peak_bytes: int
    """Above weights and images."""


@dataclass(frozen=True)
class NetworkTiming:
    """What one network took."""

    model: str
    image_size: tuple[int, int]
    parameters: int
    latency: Pace
    """One image, forward."""
    throughput: Pace
    """A batch, forward."""
    training: Pace
    """The same batch, forward and backward, in training mode."""
    error: float
    """Of the logits, relative to the largest one, against float64."""


def time_networks(
    names: Sequence[str], problem: NetworkProblem, rounds: int = 7, backends: Sequence[str] = ("auto",)
) -> list[NetworkTiming]:
    """Check networks with new weights against float64, then time them in turn.

    Args:
        names: models registered with timm.
        problem: images and arithmetic.
        rounds: timed runs of each.
        backends: of the operator; a network that has it is timed with each of them.

    Raises:
        CheckFailure: one is wrong; none is timed then.
        ValueError: a name is not registered.
    """
    candidates: dict[str, _Candidate] = {}
    for name in names:
        for backend in backends:
            candidate = _Candidate(name, backend, problem)
            candidates.setdefault(candidate.name, candidate)
    errors = {name: candidate.check() for name, candidate in candidates.items()}

    def pace(batch_size: int, make: Callable[[_Candidate, int], Callable[[], object]]) -> dict[str, Pace]:
        functions = {name: make(candidate, batch_size) for name, candidate in candidates.items()}
        return _pace(functions, batch_size, rounds, problem.device)

    latency = pace(1, _Candidate.forward)
    throughput = pace(problem.batch_size, _Candidate.forward)
    training = pace(problem.batch_size, _Candidate.training)
    return [
        NetworkTiming(
            name,
            candidate.image_size,
            sum(parameter.numel() for parameter in candidate.model.parameters()),
            latency[name],
            throughput[name],
            training[name],
            errors[name],
        )
        for name, candidate in candidates.items()
    ]


def _pace(
    functions: Mapping[str, Callable[[], object]], batch_size: int, rounds: int, device: torch.device
) -> dict[str, Pace]:
    seconds = time_in_turn(functions, rounds, device)
    first = next(iter(functions))
    spreads = {name: Spread.of(seconds[name]) for name in functions}
    return {
        name: Pace(
            batch_size,
            spreads[name],
            ratios(seconds, name, first),
            batch_size / spreads[name].median,
            peak_bytes(function, device),
        )
        for name, function in functions.items()
    }


class _Candidate:
    """One network with new weights, ready to run."""

    def __init__(self, name: str, backend: str, problem: NetworkProblem) -> None:
        if not timm.is_model(name):
            raise ValueError(f"model must be a timm model, got {name}")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model: Any = timm.create_model(name)
            if problem.image_size is not None and hasattr(model, "set_input_size"):
                model = timm.create_model(name, img_size=problem.image_size)
        channels, *own = (getattr(model, "pretrained_cfg", None) or {}).get("input_size") or (3, 224, 224)
        height, width = problem.image_size or own
        self.image_size: tuple[int, int] = (height, width)
        self.channels: int = channels
        self.problem = problem
        self.model: nn.Module = model.to(problem.device)
        uses_operator = set_backend(self.model, backend)
        self.name = f"{name}, {backend}" if uses_operator and backend != "auto" else name

    def check(self) -> float:
        """Return the relative error of the logits against float64."""
        image = self._images(1)
        reference = copy.deepcopy(self.model).double()
        set_backend(reference, "reference")
        with torch.no_grad():
            expected = reference.eval()(image.double())
            actual = self._compute(self.model.eval(), image).double()
        error = (actual - expected).abs().max().item() / (expected.abs().max().item() or 1.0)
        if not error <= BOUNDS[self.problem.dtype]:  # false for NaN
            raise CheckFailure(
                f"{self.name} must agree with float64 before it is timed: its logits are off by {error:.1e} "
                f"(at most {BOUNDS[self.problem.dtype]:.0e}) in {str(self.problem.dtype).removeprefix('torch.')}"
            )
        return error

    def forward(self, batch_size: int) -> Callable[[], object]:
        """Return a function that infers, of the model in evaluation mode from now on."""
        images = self._images(batch_size)
        self.model.eval()

        def run() -> Tensor:
            with torch.no_grad():
                return self._compute(self.model, images)

        return run

    def training(self, batch_size: int) -> Callable[[], object]:
        """Return a function that computes gradients of all weights, of the model in training mode from now on."""
        images = self._images(batch_size)
        self.model.train()

        def run() -> None:
            self._compute(self.model, images).float().sum().backward()
            self.model.zero_grad(set_to_none=True)

        return run

    def _images(self, batch_size: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        shape = (batch_size, self.channels, *self.image_size)
        return torch.randn(shape, generator=generator).to(self.problem.device)

    def _compute(self, model: nn.Module, images: Tensor) -> Tensor:
        dtype = self.problem.dtype
        with torch.autocast(self.problem.device.type, dtype, enabled=dtype != torch.float32):
            return model(images)


def set_backend(model: nn.Module, backend: str) -> bool:
    """Choose the operator's backend in every layer that uses it; returns whether there is one."""
    layers = [module for module in model.modules() if isinstance(module, (PolaAttention, PolaLinearAttention))]
    for layer in layers:
        layer.backend = backend
    return bool(layers)
