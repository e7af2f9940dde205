"""Loaders that yield (images, labels), name unreadable files once, and know how far they have come."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .datasets import Batch, EvalDataset, TrainDataset, collate
from .names import printable
from .samplers import EvalBatchSampler, Position, TrainBatchSampler

logger = logging.getLogger("polaformer")

DatasetT = TypeVar("DatasetT", TrainDataset, EvalDataset)
SamplerT = TypeVar("SamplerT", TrainBatchSampler, EvalBatchSampler)


class _Loader(Generic[DatasetT, SamplerT]):
    """What both loaders share: torch's DataLoader inside, started at the first batch and ended by `shutdown`.

    It holds rather than is a DataLoader: Lightning rebuilds DataLoaders around samplers of its own, which would undo
    the guarantees of ours.

    Args:
        dataset: yields samples by key.
        batch_sampler: yields lists of keys.
        num_workers: loader processes; at most as many as there are cores are started.
    """

    def __init__(self, dataset: DatasetT, batch_sampler: SamplerT, num_workers: int) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.num_workers = min(num_workers, _cores())
        self.bad_files: dict[str, str] = {}
        self._torch_loader: DataLoader[Any] | None = None

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def shutdown(self) -> None:
        """End the loader processes; iterating starts new ones."""
        self._torch_loader = None

    def _batches(self) -> Iterator[Batch]:
        if self._torch_loader is None:
            self._torch_loader = self._start()
        yield from self._torch_loader

    def _start(self) -> DataLoader[Any]:
        return DataLoader(
            self.dataset,
            batch_sampler=self.batch_sampler,
            num_workers=self.num_workers,
            collate_fn=collate,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self.num_workers > 0,
            # Its own generator: the default draws a seed from the global one at every pass, and a resumed run, which
            # makes a pass more, would then differ in every random number that follows.
            generator=torch.Generator(),
        )

    def _name(self, batch: Batch, consequence: str) -> None:
        for path, reason in batch.failures:
            if path not in self.bad_files:
                self.bad_files[path] = reason
                logger.warning("unreadable image, %s: %s: %s", consequence, printable(path), reason)


class TrainLoader(_Loader[TrainDataset, TrainBatchSampler]):
    """Training batches from the sampler's position on; each pass is the next epoch.

    Its `state_dict` is the position after the last batch handed out, whatever loader processes have read ahead.

    Args:
        dataset: training images.
        batch_sampler: their order and position.
        num_workers: loader processes.
        max_bad_fraction: share of one pass's images on this process above which unreadable files end the run.
        class_names: for the error where a class has no readable image.

    Attributes:
        bad_files: reason by path of each unreadable file met so far.
    """

    def __init__(
        self,
        dataset: TrainDataset,
        batch_sampler: TrainBatchSampler,
        num_workers: int,
        max_bad_fraction: float,
        class_names: list[str],
    ) -> None:
        super().__init__(dataset, batch_sampler, num_workers)
        self.max_bad_fraction = max_bad_fraction
        self.class_names = class_names

    @property
    def sampler(self) -> TrainBatchSampler:
        """The batch sampler by the name under which Lightning looks for `set_epoch`."""
        return self.batch_sampler

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        bad_in_pass: set[str] = set()
        for batch in self._batches():
            self.batch_sampler.advance()
            self._name(batch, "another of its class stands in")
            bad_in_pass.update(path for path, _ in batch.failures)
            self._check_share(bad_in_pass)
            if batch.lost_labels:
                name = self.class_names[batch.lost_labels[0]]
                raise ValueError(
                    f"class {name!r} has no readable training image, "
                    f"the last tried is {printable(batch.failures[-1].path)}"
                )
            yield batch.images, batch.labels

    def _check_share(self, bad: set[str]) -> None:
        total = self.batch_sampler.images_per_epoch
        if len(bad) > self.max_bad_fraction * total:
            path = min(bad)
            raise ValueError(
                f"{len(bad)} of {total} training images cannot be read, a larger share than "
                f"data.max_bad_fraction = {self.max_bad_fraction}; one is {printable(path)}: {self.bad_files[path]}; "
                "`polaformer check-data` lists all"
            )

    def state_dict(self) -> Position:
        """The position after the last batch handed out."""
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: Position) -> None:
        """Continue from a saved position, see `TrainBatchSampler.load_state_dict`."""
        self.batch_sampler.load_state_dict(state)


class EvalLoader(_Loader[EvalDataset, EvalBatchSampler]):
    """Evaluation batches, every readable image once over all processes.

    Unreadable files are left out, named and kept in `bad_files`; a batch of nothing else is passed over.

    Args:
        dataset: held-out images.
        batch_sampler: this process's share.
        num_workers: loader processes.
    """

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._batches():
            self._name(batch, "left out of the evaluation")
            if len(batch.labels):
                yield batch.images, batch.labels


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
