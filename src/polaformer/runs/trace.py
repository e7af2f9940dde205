"""Finds the first module of a network whose output or gradient is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Finding:
    """Where a number first stopped being finite."""

    module: str | None
    """Full name of the module, '' for the network itself, None when the images are to blame."""
    description: str
    """One clause for people."""


@dataclass
class _Call:
    """What is known of one call of one module."""

    name: str
    module: nn.Module
    inputs_finite: bool = True
    input_gradients: list[bool] = field(default_factory=list)
    """Whether each gradient that this call sends to an input is finite."""
    output_gradients: list[bool] = field(default_factory=list)
    """Whether each gradient that arrives at an output is finite."""


class _Watch:
    """Hooks on every module of a network that note, call by call, what is not finite."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[_Call] = []
        """In the order in which they ended, so a module comes after those inside it."""
        self.broken: list[_Call] = []
        """Calls with finite inputs and an output that is not, in the same order."""
        self._open: list[_Call] = []
        self._handles = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._enter(name)))
            self._handles.append(module.register_forward_hook(self._leave))

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, name: str) -> Callable[[nn.Module, Any], tuple[Any, ...]]:
        def hook(module: nn.Module, inputs: Any) -> tuple[Any, ...]:
            call = _Call(name, module, all(_finite(tensor) for tensor in _tensors(inputs)))
            self._open.append(call)
            return tuple(self._branch(value, call.input_gradients) for value in inputs)

        return hook

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        call = self._open.pop()
        self.calls.append(call)
        outputs = list(_tensors(output))
        if call.inputs_finite and not all(map(_finite, outputs)):
            self.broken.append(call)
        for tensor in outputs:
            _record_gradient(tensor, call.output_gradients)

    @staticmethod
    def _branch(value: Any, gradients: list[bool]) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        # A tensor may feed several modules; a view of its own tells what this one sends back.
        view = value.view_as(value)
        _record_gradient(view, gradients)
        return view


def trace_non_finite(model: nn.Module, images: Tensor, run: Callable[[], Tensor]) -> Finding | None:
    """Run a training step once more and say where it first goes wrong.

    Forward order comes first: the first module, innermost first, with finite inputs and an output that is not finite.
    Where the forward pass is clean, backward order: the first innermost module with finite gradients at its output
    and gradients at its input or its own parameters that are not. Parameter gradients (`.grad`) are left untouched.

    Args:
        model: the network.
        images: (B, channels, height, width), what the network is fed.
        run: computes the loss, calling the model.

    Returns:
        The finding, or None when this run is finite throughout.
    """
    if not _finite(images):
        return Finding(None, "the images of the batch already hold values that are not finite")
    watch = _Watch(model)
    try:
        loss = run()
    finally:
        watch.remove()
    if watch.broken:
        title = _title(watch.broken[0])
        return Finding(watch.broken[0].name, f"the first output that is not finite comes from {title}")
    if not _finite(loss):
        return Finding("", "the network's outputs are finite but the loss computed from them is not")
    return _backward_finding(model, watch.calls, loss)


def _backward_finding(model: nn.Module, calls: list[_Call], loss: Tensor) -> Finding | None:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    # Not backward(): it would add to .grad and, under DistributedDataParallel, wait for the other processes.
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    bad = {name for name, gradient in zip(parameters, gradients) if gradient is not None and not _finite(gradient)}
    if not all(calls[-1].output_gradients):
        return Finding("", "the gradient of the loss with respect to the network's outputs is not finite")
    candidates = [
        call
        for call in reversed(calls)
        if all(call.output_gradients) and (not all(call.input_gradients) or not bad.isdisjoint(_own_names(call)))
    ]
    for call in candidates:
        inside = f"{call.name}." if call.name else ""
        if not any(other.name.startswith(inside) for other in candidates if other is not call):
            return Finding(call.name, f"the first gradient that is not finite arises in {_title(call)}")
    return None


def _record_gradient(tensor: Tensor, finite: list[bool]) -> None:
    if tensor.requires_grad:
        tensor.register_hook(lambda gradient: finite.append(_finite(gradient)))


def _own_names(call: _Call) -> list[str]:
    """Full names of the parameters that are the module's own, not its children's."""
    prefix = f"{call.name}." if call.name else ""
    return [prefix + name for name, _ in call.module.named_parameters(recurse=False)]


def _title(call: _Call) -> str:
    kind = type(call.module).__name__
    title = f"module {call.name!r} ({kind})" if call.name else f"the network itself ({kind})"
    stale = [name for name, parameter in call.module.named_parameters(recurse=False) if not _finite(parameter)]
    return title + (f", whose parameter {stale[0]!r} is not finite" if stale else "")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
