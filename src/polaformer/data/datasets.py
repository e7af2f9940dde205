"""Data sets that augment by key and report, rather than hide or die of, files that cannot be read.

A file's failure travels with the batch to the main process (`loaders.py`), which names it once, whatever loader process
met it, and decides whether to go on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .images import ImageError
from .split import LabelledImages
from .transforms import Transform


class Failure(NamedTuple):
    """A file that could not be read."""

    path: str
    reason: str


class Sample(NamedTuple):
    """One item: the image, None where none could be had, its label, and the files that failed on the way."""

    image: Tensor | None
    label: int
    failures: list[Failure]


class Batch(NamedTuple):
    """Readable images (B, C, S, S), labels (B,), the failures met, and the labels for which no image could be had."""

    images: Tensor
    labels: Tensor
    failures: list[Failure]
    lost_labels: list[int]


class TrainDataset(Dataset[Sample]):
    """Training images under random augmentation that is a function of (seed, epoch, image) alone.

    Key epoch · N + i is image i as augmented in that epoch. In the place of an unreadable image stands the next
    readable one of its class, in the order of the list and from its end on to its start.

    Args:
        images: the N images.
        transform: drawing from the global generators of `random`, numpy and torch, which are left as they were.
        seed: of the augmentation, ≥ 0.
        in_chans: 1 or 3.
    """

    def __init__(self, images: LabelledImages, transform: Transform, seed: int, in_chans: int) -> None:
        self.images = images
        self.transform = transform
        self.seed = seed
        self.in_chans = in_chans

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: int) -> Sample:
        epoch, index = divmod(key, len(self.images))
        label = int(self.images.labels[index])
        failures: list[Failure] = []
        for candidate in self._candidates(index):
            try:
                picture = self.images.load(candidate, self.in_chans)
            except ImageError as error:
                failures.append(Failure(error.path, error.reason))
                continue
            with scoped_random(self.seed, epoch, index):
                return Sample(self.transform(picture), label, failures)
        return Sample(None, label, failures)

    def _candidates(self, index: int) -> Iterator[int]:
        yield index
        members = np.flatnonzero(self.images.labels == self.images.labels[index])
        place = int(np.searchsorted(members, index))
        yield from (int(members[(place + step) % len(members)]) for step in range(1, len(members)))


class EvalDataset(Dataset[Sample]):
    """Images under a fixed transform; an unreadable one is an item without image, never replaced.

    Args:
        images: the images.
        transform: without randomness.
        in_chans: 1 or 3.
    """

    def __init__(self, images: LabelledImages, transform: Transform, in_chans: int) -> None:
        self.images = images
        self.transform = transform
        self.in_chans = in_chans

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        label = int(self.images.labels[index])
        try:
            return Sample(self.transform(self.images.load(index, self.in_chans)), label, [])
        except ImageError as error:
            return Sample(None, label, [Failure(error.path, error.reason)])


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack the samples that have an image; the batch has none if no sample has."""
    readable = [(sample.image, sample.label) for sample in samples if sample.image is not None]
    return Batch(
        images=torch.stack([image for image, _ in readable]) if readable else torch.empty(0),
        labels=torch.tensor([label for _, label in readable], dtype=torch.int64),
        failures=[failure for sample in samples for failure in sample.failures],
        lost_labels=[sample.label for sample in samples if sample.image is None],
    )


@contextmanager
def scoped_random(*key: int) -> Iterator[None]:
    """Seed `random`, numpy and torch (CPU) from a key of integers ≥ 0; put their states back afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    python_seed, numpy_seed, torch_seed = (int(word) for word in np.random.SeedSequence(key).generate_state(3))
    random.seed(python_seed)
    np.random.seed(numpy_seed)
    torch.default_generator.manual_seed(torch_seed)  # torch.manual_seed would seed the GPUs as well
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
