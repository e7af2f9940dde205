"""Which images each process sees, in which order: pure functions of seed and epoch, with a position to return to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypedDict

import numpy as np
from torch.utils.data import Sampler


class Position(TypedDict):
    """Where a run stands in its data, with what makes that position meaningful."""

    epoch: int
    batches_done: int
    num_images: int
    batch_size: int
    world_size: int


class TrainBatchSampler(Sampler[list[int]]):
    """Batches of one process in an order that is a function of (seed, epoch) alone.

    Every epoch is a permutation of all N images, repeated from its start until it divides by the number of processes,
    so that each process takes the same number of steps; process r takes every world_size-th image from the r-th on.
    The last batch may be smaller; nothing is dropped. Keys are epoch · N + image, so that a data set which augments
    by key needs no other word of the epoch.

    A pass starts at `batches_done`; whoever consumes the batches counts them with `advance`, since loader processes
    read ahead. After the last batch the position is the start of the next epoch.

    Args:
        num_images: N ≥ 1.
        batch_size: images a batch on this process.
        seed: of the order, ≥ 0.
        rank: number of this process.
        world_size: number of processes.
    """

    def __init__(self, num_images: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self.num_images = num_images
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.batches_done = 0

    @property
    def images_per_epoch(self) -> int:
        """Images this process reads in an epoch."""
        return math.ceil(self.num_images / self.world_size)

    def __len__(self) -> int:
        return math.ceil(self.images_per_epoch / self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """Images of this process in an epoch, int64 (images_per_epoch,)."""
        # RandomState's streams are frozen by numpy's policy; those of default_rng may change with a release.
        generator = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((self.seed, epoch))))
        permutation = generator.permutation(self.num_images)
        return np.resize(permutation, self.images_per_epoch * self.world_size)[self.rank :: self.world_size]

    def __iter__(self) -> Iterator[list[int]]:
        keys = self.epoch * self.num_images + self.order(self.epoch)
        for start in range(self.batches_done * self.batch_size, len(keys), self.batch_size):
            yield keys[start : start + self.batch_size].tolist()

    def advance(self) -> None:
        """Count one batch as consumed."""
        self.batches_done += 1
        if self.batches_done == len(self):
            self.epoch, self.batches_done = self.epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless the position is inside it already (Lightning calls this every epoch)."""
        if epoch != self.epoch:
            self.epoch, self.batches_done = epoch, 0

    def set_position(self, epoch: int, batches_done: int) -> None:
        """Continue after so many batches of an epoch.

        Args:
            epoch: counted from 0.
            batches_done: batches of it that are consumed, 0 to the number of batches an epoch.

        Raises:
            ValueError: there are no so many batches.
        """
        if epoch < 0 or not 0 <= batches_done <= len(self):
            raise ValueError(f"position must be an epoch ≥ 0 and 0..{len(self)} batches, got {epoch}, {batches_done}")
        self.epoch, self.batches_done = divmod(epoch * len(self) + batches_done, len(self))

    def state_dict(self) -> Position:
        """The position as plain integers."""
        return Position(
            epoch=self.epoch,
            batches_done=self.batches_done,
            num_images=self.num_images,
            batch_size=self.batch_size,
            world_size=self.world_size,
        )

    def load_state_dict(self, state: Position) -> None:
        """Return to a saved position.

        Raises:
            ValueError: it lies inside an epoch of other images, batches or processes, so that it means nothing here.
        """
        for key, here in (
            ("num_images", self.num_images),
            ("batch_size", self.batch_size),
            ("world_size", self.world_size),
        ):
            if state["batches_done"] and state[key] != here:
                raise ValueError(
                    f"a run that stopped inside an epoch must go on with {key} {state[key]}, got {here}; "
                    "a checkpoint from the end of an epoch is free of this"
                )
        self.set_position(state["epoch"], state["batches_done"])


class EvalBatchSampler(Sampler[list[int]]):
    """Every image exactly once over all processes, in order: process r takes images r, r + world_size, ...

    Nothing is repeated to even out the processes, so that counts do not depend on how many there are; a process may
    have a batch less than another, or none.

    Args:
        num_images: N.
        batch_size: images a batch on this process.
        rank: number of this process.
        world_size: number of processes.
    """

    def __init__(self, num_images: int, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.images = range(rank, num_images, world_size)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self.images), self.batch_size):
            yield list(self.images[start : start + self.batch_size])
