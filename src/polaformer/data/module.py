"""Everything a classification run needs to know of its images, as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..recipe import DataConfig
from .datasets import EvalDataset, TrainDataset
from .digits import DIGITS, load_digits_split
from .folders import scan_folder
from .loaders import EvalLoader, TrainLoader
from .samplers import EvalBatchSampler, Position, TrainBatchSampler
from .split import DataSplit, LabelledImages
from .transforms import Preprocessing, channel_statistics, evaluation_transform, training_transform

try:
    import pytorch_lightning as pl
    import torch.distributed as dist
except ImportError as error:
    raise ImportError("training needs Lightning: pip install 'polaformer[train]'") from error


class ClassificationDataModule(pl.LightningDataModule):
    """Images with class labels: scanning, splitting, transforms, order, position.

    Loaders yield (images (B, in_chans, img_size, img_size) float32, labels (B,) int64) and share the images among the
    processes of torch.distributed, where it is initialised. Leave the rest to them: Lightning's own samplers do not
    apply, whatever `use_distributed_sampler` says.

    Args:
        config: the data section of a recipe.
        seed: of order and augmentation, ≥ 0.
        class_names: class table of a trained model, which the images are matched to by name; null takes it from the
            training images.

    Attributes:
        preprocessing: what evaluation does to a picture, to be stored beside the weights.

    Raises:
        ValueError: a value of the config is out of range; the message names its key.
    """

    def __init__(self, config: DataConfig, *, seed: int, class_names: list[str] | None = None) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # fewer held-out images than processes
        for key, least in (("batch_size", 1), ("num_workers", 0)):
            if getattr(config, key) < least:
                raise ValueError(f"data.{key} must be at least {least}, got {getattr(config, key)}")
        if not 0.0 <= config.max_bad_fraction <= 1.0:
            raise ValueError(f"data.max_bad_fraction must be in 0..1, got {config.max_bad_fraction}")
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        self.config = config
        self.seed = seed
        self.resolve_preprocessing({})
        self._given_names = class_names
        self._split: DataSplit | None = None
        self._loaders: dict[str, TrainLoader | EvalLoader] = {}
        self._start: Position | None = None

    def resolve_preprocessing(self, pretrained_cfg: Mapping[str, Any]) -> Preprocessing:
        """Fill mean and std where the config leaves them null, from the model's; ImageNet's where that has none.

        Args:
            pretrained_cfg: timm's, with "mean" and "std"; averaged over channels for a grey input.

        Returns:
            The complete preprocessing, to be stored beside the weights.

        Raises:
            ValueError: wrong number of channels, or a value out of range.
        """
        config = self.config
        mean = channel_statistics(
            config.mean, pretrained_cfg.get("mean", IMAGENET_DEFAULT_MEAN), config.in_chans, "data.mean"
        )
        std = channel_statistics(
            config.std, pretrained_cfg.get("std", IMAGENET_DEFAULT_STD), config.in_chans, "data.std"
        )
        self.preprocessing = Preprocessing(
            config.img_size, config.in_chans, mean, std, config.interpolation, config.crop_pct
        )
        self.train_transform = training_transform(config, mean, std)
        self.eval_transform = evaluation_transform(
            config.img_size, config.in_chans, mean, std, config.interpolation, config.crop_pct
        )
        return self.preprocessing

    def setup(self, stage: str | None = None) -> None:
        """List the images once; later calls do nothing.

        Args:
            stage: Lightning's; all roles are listed whatever it is.

        Raises:
            ValueError: the folder cannot be used; see `read_folder`.
        """
        if self._split is not None:
            return
        config = self.config
        if config.path == DIGITS:
            self._split = load_digits_split(config.val_fraction, config.split_seed)
            if self._given_names not in (None, self._split.class_names):
                raise ValueError(f"the digits' classes are 0 to 9, got a model of {', '.join(self._given_names)}")
        else:
            self._split = scan_folder(config.path, config.val_fraction, config.split_seed, self._given_names)

    @property
    def split(self) -> DataSplit:
        """The images by role."""
        if self._split is None:
            raise RuntimeError("call setup() before the images are asked for")
        return self._split

    @property
    def class_names(self) -> list[str]:
        """Name of each class number."""
        return self.split.class_names

    @property
    def num_train(self) -> int:
        """Training images over all processes."""
        return len(self.split.train)

    @property
    def num_val(self) -> int:
        """Held-out images over all processes, unreadable ones included."""
        return len(self.split.val)

    def check_labels(self, num_classes: int) -> None:
        """Make sure that the model has an output for every label, before a device meets one it lacks.

        Args:
            num_classes: outputs of the model.

        Raises:
            ValueError: a label is not in 0..num_classes - 1; names its class and an image.
        """
        for images in (self.split.train, self.split.val, self.split.test):
            if images is None:
                continue
            wrong = np.flatnonzero((images.labels < 0) | (images.labels >= num_classes))
            if len(wrong):
                label = int(images.labels[wrong[0]])
                name = self.class_names[label] if 0 <= label < len(self.class_names) else "unknown"
                raise ValueError(
                    f"labels must be in 0..{num_classes - 1} for a model of {num_classes} classes, got {label} "
                    f"({name}) for {images.path(int(wrong[0]))}"
                )

    def train_dataloader(self) -> TrainLoader:
        """Training batches from the position set since the last call, else from the first epoch's start."""
        images = self.split.train
        if not len(images):
            raise ValueError(f"data.path must hold images to train on, got only held-out ones in {self.config.path!r}")
        sampler = TrainBatchSampler(len(images), self.config.batch_size, self.seed, *_rank_and_world_size())
        loader = TrainLoader(
            TrainDataset(images, self.train_transform, self.seed, self.config.in_chans),
            sampler,
            self.config.num_workers,
            self.config.max_bad_fraction,
            self.class_names,
        )
        if self._start is not None:
            sampler.load_state_dict(self._start)
            self._start = None
        self._loaders["train"] = loader
        return loader

    def val_dataloader(self) -> EvalLoader:
        """Held-out batches."""
        return self._eval_loader("val", self.split.val)

    def test_dataloader(self) -> EvalLoader:
        """Batches of test/, or of the held-out images where there is none beside them."""
        return self._eval_loader("test", self.split.test if self.split.test is not None else self.split.val)

    def _eval_loader(self, role: str, images: LabelledImages) -> EvalLoader:
        loader = EvalLoader(
            EvalDataset(images, self.eval_transform, self.config.in_chans),
            EvalBatchSampler(len(images), self.config.batch_size, *_rank_and_world_size()),
            self.config.num_workers,
        )
        self._loaders[role] = loader
        return loader

    def bad_files(self, role: str) -> dict[str, str]:
        """Reason by path of each unreadable file this process has met in the latest loader of a role.

        Args:
            role: train, val or test.
        """
        return dict(self._loaders[role].bad_files) if role in self._loaders else {}

    def set_position(self, epoch: int, batches_done: int) -> None:
        """Let the next `train_dataloader()` start after so many batches of an epoch.

        Args:
            epoch: counted from 0.
            batches_done: batches of this process consumed in it.
        """
        self._start = Position(
            epoch=epoch,
            batches_done=batches_done,
            num_images=self.num_train,
            batch_size=self.config.batch_size,
            world_size=_rank_and_world_size()[1],
        )

    def state_dict(self) -> dict[str, Any]:
        """The position in the training images, as plain integers; empty before there is one."""
        if self._start is not None:
            return dict(self._start)
        loader = self._loaders.get("train")
        return dict(loader.state_dict()) if isinstance(loader, TrainLoader) else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next `train_dataloader()` start from a saved position."""
        if state_dict:
            self._start = Position(**state_dict)

    def teardown(self, stage: str | None = None) -> None:
        """End the loader processes.

        Args:
            stage: Lightning's; all loaders are ended whatever it is.
        """
        for loader in self._loaders.values():
            loader.shutdown()


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
