"""Tiles that stay in a processor's cache, and buffers of a tile's size that are used again and again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

Group = tuple[slice, slice]  # some batch entries with all their heads, or some heads of one batch entry
Tile = tuple[slice, slice, slice]  # a group, or some tokens of one head

# torch gives each thread 32768 elements or more, so that at most two of them share a tile, whatever their number.
TILE = 65536
_VECTORS = 128


def head_groups(batch: int, heads: int, elements: int) -> Iterator[Group]:
    """Cut batch and heads into groups of at most a tile, or single heads where one has more elements than a tile."""
    together = max(TILE // elements, 1)
    if together >= heads:
        for entries in _slices(batch, together // heads):
            yield entries, slice(0, heads)
        return
    for entry in range(batch):
        for some in _slices(heads, together):
            yield slice(entry, entry + 1), some


def tiles(x: Tensor, width: int) -> Iterator[Tile]:
    """Cut the first three dimensions of x, (B, H, N, …), into tiles of at most `TILE` elements when a token has `width`."""
    batch, heads, tokens = x.shape[:3]
    for group in head_groups(batch, heads, tokens * width):
        for some in _slices(tokens, max(TILE // width, 1)):
            yield *group, some


def _slices(size: int, longest: int) -> Iterator[slice]:
    step = math.ceil(size / math.ceil(size / longest))
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


class Scratch:
    """Named buffers of a tile's size, in the dtype and on the device of the tensor given."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the named buffer in this shape; what it held before counts no more."""
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = self._like.new_empty(_whole_vectors(size))
        return self._buffers[name][:size].view(shape)

    def load(self, name: str, x: Tensor, padding: Tensor | None) -> Tensor:
        """Return x itself where that will do, else a copy in the buffers' dtype with padded tokens set to 0."""
        if padding is None and x.dtype == self._like.dtype:
            return x
        copy = self.take(name, *x.shape).copy_(x)
        return copy if padding is None else copy.masked_fill_(padding, 0)

    def exp2_(self, name: str, size: int) -> None:
        """Replace the first `size` elements of the named buffer by two to their power."""
        # torch rounds whole vectors in one way and what is left of them in another. With whole vectors in either half the
        # result is the same whether one thread takes them or two.
        whole = self._buffers[name][: _whole_vectors(size)]
        torch.exp2(whole, out=whole)


def _whole_vectors(size: int) -> int:
    return math.ceil(size / _VECTORS) * _VECTORS
