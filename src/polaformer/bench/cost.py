"""What a network costs, part by part: attention, tokens, parameters, multiply-adds, memory; from shapes alone.

The network runs once on tensors without content, so that any size costs the same and no memory. Counted are the multiply-adds
of matrix products and convolutions, by PyTorch's counter and the formulas registered with it. Not counted is everything done
element by element: activations, norms, softmax, pooling, resizing, and products written out as multiplications and a sum.

An operator of matmul kind without a formula withholds the sums it would belong to. That goes for PyTorch's own operators whose
names say that they multiply matrices, and for every operator that is not PyTorch's own, since nobody knows what it computes.
`torch.utils.flop_counter.register_flop_formula` gives it a formula.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .recognition import Attention, attention_of, is_of_matmul_kind, more_formulas

REST = "(model itself)"
"""Name of the part that holds what belongs to no submodule, such as position embeddings."""


@dataclass(frozen=True)
class Part:
    """What one part of a network costs."""

    name: str
    """Name of the submodule."""
    attention: str | None
    """'polarity-aware linear', 'softmax', both, or None where there is none."""
    tokens: int | None
    """Queries an image, those of padding included; None without attention, or where its blocks differ."""
    keys: int | None
    """Keys that each query attends to; None as for tokens."""
    parameters: int
    multiply_adds: int | None
    """Of the forward pass; None where an operator of matmul kind is not counted."""
    activation_bytes: int
    """What the forward pass keeps for backward, without weights."""


@dataclass(frozen=True)
class Cost:
    """What a network costs: its parts in their order, and their sums."""

    parts: list[Part]
    parameters: int
    multiply_adds: int | None
    """Of the forward pass; None where an operator of matmul kind is not counted."""
    activation_bytes: int
    uncounted: dict[str, int]
    """Operators of matmul kind without a formula, and how often each ran."""


def count_cost(model: nn.Module, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Cost:
    """Count what a forward pass costs.

    A part is a submodule; a list of them is taken apart where its members differ in their attention.

    Args:
        model: A network of one input tensor, on any device, 'meta' included. It is not changed; whether it trains or
            evaluates is left as it is.
        shape: Shape of the input, the batch first.
        dtype: Dtype of the input.

    Raises:
        Exception: whatever the model raises for such an input.
    """
    counter = FlopCounterMode(display=False, custom_mapping=more_formulas())
    with _without_log("torch._subclasses.fake_tensor"), FakeTensorMode():
        # Stand-ins on the CPU, whatever the device: fused attention keeps no scores there, and on 'meta' it would.
        weights = {
            name: torch.empty(x.shape, dtype=x.dtype, requires_grad=x.requires_grad)
            for name, x in [*model.named_parameters(), *model.named_buffers()]
        }
        watch = _Watch(counter, shape[0], list(weights.values()))
        saving = torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda x: x)
        with torch.enable_grad(), saving, watch, counter:
            torch.func.functional_call(model, weights, (torch.empty(*shape, dtype=dtype),))
    return _Tally(model, watch.events, counter).cost()


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    # Torch logs with a traceback of its own what it also raises.
    logger = logging.getLogger(name)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


@dataclass(frozen=True)
class _Event:
    """One thing seen while the network ran."""

    modules: tuple[str, ...]
    """The modules at work."""
    attention: Attention | None = None
    uncounted: str | None = None
    """An operator of matmul kind without a formula."""
    kept: int = 0
    """Bytes kept for backward."""


class _Watch(TorchDispatchMode):
    """Notes attention, operators without a formula and what is kept for backward, with the modules at work."""

    def __init__(self, counter: FlopCounterMode, batch: int, weights: list[Tensor]) -> None:
        super().__init__()
        self.events: list[_Event] = []
        self._counter = counter
        self._batch = batch
        self._storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in weights}

    def keep(self, x: Tensor) -> Tensor:
        """Note a tensor saved for backward: each storage once, weights not."""
        storage = x.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage  # held, so that no other takes its address
            self._note(kept=storage.nbytes())
        return x

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = str(func._overloadpacket)
        if func._overloadpacket not in self._counter.flop_registry and is_of_matmul_kind(name):
            self._note(uncounted=name.replace(".", "::"))
        attention = attention_of(name, self._batch, args)
        if attention is not None:
            self._note(attention=attention)
        return func(*args, **(kwargs or {}))

    def _note(self, **what: Any) -> None:
        self.events.append(_Event(tuple(self._counter.mod_tracker.parents), **what))


class _Tally:
    """Sums what was seen over the parts of a model."""

    def __init__(self, model: nn.Module, events: list[_Event], counter: FlopCounterMode) -> None:
        root = f"{type(model).__name__}."
        self.model = model
        self.events = events
        self.modules = [{name.removeprefix(root) for name in event.modules} for event in events]
        self.flops = {name.removeprefix(root): sum(by.values()) for name, by in counter.get_flop_counts().items()}
        self.total = counter.get_total_flops()
        self.sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def cost(self) -> Cost:
        """Return the parts with what they cost, without those that cost nothing, and the sums."""
        names = [part for name, child in self.model.named_children() for part in self._split(name, child)]
        parts = [self._part(name, self._flops_of(name), self._seen_in(name)) for name in names]
        inside = {id(event) for name in names for event in self._seen_in(name)}
        rest = self._part(
            REST,
            self.total - sum(map(self._flops_of, names)),
            [event for event in self.events if id(event) not in inside],
            sum(self.sizes.values()) - sum(part.parameters for part in parts),
        )
        parts = [part for part in (*parts, rest) if part.parameters or part.multiply_adds != 0 or part.activation_bytes]
        uncounted = Counter(event.uncounted for event in self.events if event.uncounted is not None)
        return Cost(
            parts,
            sum(self.sizes.values()),
            None if uncounted else self.total // 2,
            sum(part.activation_bytes for part in parts),
            dict(uncounted),
        )

    def _split(self, name: str, module: nn.Module) -> list[str]:
        kinds = {event.attention for event in self._seen_in(name)} - {None}
        if len(kinds) > 1 and isinstance(module, (nn.ModuleList, nn.Sequential)):
            return [part for key, child in module.named_children() for part in self._split(f"{name}.{key}", child)]
        return [name]

    def _seen_in(self, name: str) -> list[_Event]:
        inside = f"{name}."
        return [
            event
            for event, modules in zip(self.events, self.modules)
            if any(module == name or module.startswith(inside) for module in modules)
        ]

    def _flops_of(self, name: str) -> int:
        if name in self.flops:
            return self.flops[name]
        # A list that is never called itself: its members are.
        return sum(self._flops_of(f"{name}.{key}") for key, _ in self.model.get_submodule(name).named_children())

    def _part(self, name: str, flops: int, seen: list[_Event], parameters: int | None = None) -> Part:
        if parameters is None:
            parameters = sum(size for key, size in self.sizes.items() if key.startswith(f"{name}."))
        attention = list(dict.fromkeys(event.attention for event in seen if event.attention is not None))
        tokens, keys = {each.tokens for each in attention}, {each.keys for each in attention}
        return Part(
            name,
            ", ".join(dict.fromkeys(each.kind for each in attention)) or None,
            tokens.pop() if len(tokens) == 1 else None,
            keys.pop() if len(keys) == 1 else None,
            parameters,
            None if any(event.uncounted for event in seen) else flops // 2,
            sum(event.kept for event in seen),
        )
