"""Tiles that stay in a processor's cache, and buffers of a tile's size that are used again and again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Group = tuple[slice, slice]

# Half of it costs a tenth more time in calls and threads' waiting for one another, double of it saves nothing.
TILE = 262144
# torch gives each thread 32768 elements or more: two threads at most share a piece, whatever their number.
_PIECE = 65536
_VECTORS = 128


def head_groups(batch: int, heads: int, elements: int) -> Iterator[Group]:
    """Cut batch and heads into groups: as many heads of `elements` elements each as one tile takes, but at least one.

    A group is some batch entries with all their heads, or some heads of one batch entry: the two are one dimension there.
    """
    together = max(TILE // elements, 1)
    if together >= heads:
        for entries in _slices(batch, together // heads):
            yield entries, slice(0, heads)
        return
    for entry in range(batch):
        for some in _slices(heads, together):
            yield slice(entry, entry + 1), some


def token_tiles(*tensors: Tensor | None) -> Iterable[tuple[Any, ...]]:
    """Cut tensors of one group, (·, ·, N, ·), into tiles of some tokens; None stays None."""
    present = [x for x in tensors if x is not None]
    heads = max(x.shape[0] * x.shape[1] for x in present)
    tokens = present[0].shape[2]
    longest = max(TILE // (heads * max(x.shape[3] for x in present)), 1)
    if tokens <= longest:
        return (tensors,)
    step = math.ceil(tokens / math.ceil(tokens / longest))
    return zip(*(itertools.repeat(None) if x is None else x.split(step, dim=2) for x in tensors))


def _slices(size: int, longest: int) -> Iterator[slice]:
    step = math.ceil(size / math.ceil(size / longest))
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


class Scratch:
    """Named buffers, in the dtype and on the device of the tensor given.

    What looks at a buffer is kept too: to make a view costs as much as to compute on some thousand elements.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}
        self._views: dict[tuple[Any, ...], Any] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the named buffer in this shape."""
        view = self._views.get((name, shape))
        if view is None:
            view = self._views[name, shape] = self._elements(name, math.prod(shape)).view(shape)
        return view

    def split(self, name: str, sizes: tuple[int, ...], *shape: int) -> tuple[Tensor, ...]:
        """Return the named buffer in this shape, split along the last dimension."""
        views = self._views.get((name, shape, sizes))
        if views is None:
            views = self._views[name, shape, sizes] = self.take(name, *shape).split(sizes, dim=-1)
        return views

    def load(self, name: str, x: Tensor, padding: Tensor | None) -> Tensor:
        """Return x itself where that will do, else a copy in the buffers' dtype with padded tokens set to 0."""
        if padding is None and x.dtype == self._like.dtype:
            return x
        copy = self.take(name, *x.shape).copy_(x)
        return copy if padding is None else copy.masked_fill_(padding, 0)

    def exp2_(self, name: str, size: int) -> None:
        """Replace the first `size` elements of the named buffer by two to their power."""
        # torch rounds whole vectors in one way and what is left of them in another. With whole vectors in either half of
        # a piece the result is the same whether one thread takes it or two.
        for piece in self.take(name, math.ceil(size / _VECTORS) * _VECTORS).split(_PIECE):
            torch.exp2(piece, out=piece)

    def _elements(self, name: str, size: int) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = self._like.new_empty(math.ceil(size / _VECTORS) * _VECTORS)
            self._views = {key: view for key, view in self._views.items() if key[0] != name}
        return buffer[:size]
