from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from helpers.images import write_bad_files, write_tree
from torch import Tensor, nn

from polaformer.data.folders import ImageList
from polaformer.data.module import ClassificationDataModule
from polaformer.data.transforms import evaluation_transform
from polaformer.recipe import DataConfig

DIGITS = DataConfig(
    path="digits", img_size=16, in_chans=1, batch_size=64, num_workers=0, mean=[0.5], std=[0.5], hflip=0.0, crop_pct=1.0
)


def _tree_config(path: Path, **changes) -> DataConfig:
    return replace(DataConfig(path=str(path), img_size=13, batch_size=5, num_workers=0, val_fraction=0.3), **changes)


def _module(config: DataConfig, class_names: list[str] | None = None) -> ClassificationDataModule:
    module = ClassificationDataModule(config, seed=3, class_names=class_names)
    module.setup()
    return module


class _Task(pl.LightningModule):
    """Counts what it is fed; dropout makes it depend on the main process's random numbers."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(in_features, 3))
        self.validated: Counter[int] = Counter()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validated.update(batch[1].tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _trainer(folder: Path, **options) -> pl.Trainer:
    return pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


def test_digits():
    module = _module(DIGITS)
    assert module.class_names == list("0123456789")
    assert (module.num_train, module.num_val) == (1438, 359)
    images, labels = next(iter(module.train_dataloader()))
    assert (images.shape, images.dtype) == ((64, 1, 16, 16), torch.float32)
    assert (labels.shape, labels.dtype) == ((64,), torch.int64)
    assert sum(len(labels) for _, labels in module.val_dataloader()) == 359
    assert sum(len(labels) for _, labels in module.test_dataloader()) == 359


def test_digits_are_not_for_a_model_of_other_classes():
    assert _module(DIGITS, list("0123456789")).num_val == 359
    with pytest.raises(ValueError, match="the digits' classes are 0 to 9, got a model of cat, dog"):
        _module(DIGITS, ["cat", "dog"])


def test_validation_and_prediction_see_the_same_tensor(tmp_path):
    module = _module(_tree_config(write_tree(tmp_path, {"cat": 4, "dog": 4})))
    info = module.resolve_preprocessing({"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)})
    transform = evaluation_transform(
        info.img_size, info.in_chans, info.mean, info.std, info.interpolation, info.crop_pct
    )
    images, _ = next(iter(module.val_dataloader()))
    expected = torch.stack([transform(module.split.val.load(index, 3)) for index in range(module.num_val)])
    assert torch.equal(images, expected)


def test_preprocessing_fills_what_the_config_leaves_open():
    config = DataConfig(img_size=13, in_chans=1)
    model = {"mean": (0.2, 0.3, 0.4), "std": (0.1, 0.2, 0.3)}
    grey = ClassificationDataModule(config, seed=0).resolve_preprocessing(model)
    assert (grey.mean, grey.std) == (pytest.approx([0.3]), pytest.approx([0.2]))
    colour = ClassificationDataModule(replace(config, in_chans=3), seed=0)
    assert colour.preprocessing.mean == [0.485, 0.456, 0.406]
    assert colour.resolve_preprocessing(model).mean == [0.2, 0.3, 0.4]
    given = replace(config, in_chans=3, mean=[0.7, 0.8, 0.9])
    assert ClassificationDataModule(given, seed=0).resolve_preprocessing(model).mean == [0.7, 0.8, 0.9]


def test_given_class_names_number_the_images(tmp_path):
    module = _module(_tree_config(write_tree(tmp_path, {"cat": 4, "dog": 4}), val_fraction=1.0), ["dog", "cat"])
    assert module.split.val.labels.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match=r"data\.path must hold images to train on, got only held-out ones in"):
        module.train_dataloader()


def test_label_without_an_output_is_named(tmp_path):
    module = _module(_tree_config(write_tree(tmp_path, {"cat": 4, "dog": 4, "yak": 4})))
    module.check_labels(3)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.1 for a model of 2 classes, got 2 \(yak\) for .*yak"):
        module.check_labels(2)
    module.split.val = ImageList(tmp_path, ["cat/000.png"], np.array([3]))
    with pytest.raises(ValueError, match=r"got 3 \(unknown\) for .*000\.png"):
        module.check_labels(3)


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"batch_size": 0}, 0, r"data\.batch_size must be at least 1, got 0"),
        ({"num_workers": -1}, 0, r"data\.num_workers must be at least 0, got -1"),
        ({"max_bad_fraction": 2.0}, 0, r"data\.max_bad_fraction must be in 0\.\.1, got 2\.0"),
        ({"mean": [0.5]}, 0, r"data\.mean must have 3 numbers, one a channel, got \[0\.5\]"),
        ({"crop_pct": 0.0}, 0, r"crop_pct must be above 0 and at most 1, got 0\.0"),
        ({}, -1, r"seed must be at least 0, got -1"),
    ],
)
def test_config_is_checked_before_anything_is_read(changes, seed, message):
    with pytest.raises(ValueError, match=message):
        ClassificationDataModule(replace(DataConfig(), **changes), seed=seed)


def test_loaders_need_setup():
    with pytest.raises(RuntimeError, match=r"call setup\(\) before"):
        ClassificationDataModule(DIGITS, seed=0).train_dataloader()


def test_position_is_for_the_next_loader(tmp_path):
    module = _module(_tree_config(write_tree(tmp_path, {"cat": 16, "dog": 17})))
    assert module.state_dict() == {}
    batches = list(module.train_dataloader())
    assert module.state_dict()["epoch"] == 1
    module.set_position(0, 3)
    assert (module.state_dict()["epoch"], module.state_dict()["batches_done"]) == (0, 3)
    rest = list(module.train_dataloader())
    assert [torch.equal(got[0], expected[0]) for got, expected in zip(rest, batches[3:], strict=True)] == [True] * 2
    assert torch.equal(next(iter(module.train_dataloader()))[0], batches[0][0])


class _SaveAt(pl.Callback):
    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: pl.Trainer, *args, **kwargs) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            torch.save(torch.get_rng_state(), self.path.with_suffix(".rng"))


class _RestoreRng(pl.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_start(self, *args, **kwargs) -> None:
        torch.set_rng_state(torch.load(self.path))


# With seven batches an epoch, 11 lies inside an epoch and 14 at the end of one.
@pytest.mark.parametrize(("num_workers", "stop"), [(0, 11), (2, 11), (0, 14)])
def test_twenty_lightning_steps_equal_a_stop_and_the_rest(tmp_path, num_workers, stop):
    write_tree(tmp_path / "pets", {"cat": 16, "dog": 17, "yak": 17})
    config = _tree_config(tmp_path / "pets", num_workers=num_workers)
    checkpoint = tmp_path / "stop.ckpt"

    pl.seed_everything(5, verbose=False)
    straight = _Task(3 * 13 * 13)
    saver = _SaveAt(stop, checkpoint)
    _trainer(tmp_path, max_steps=20, max_epochs=-1, callbacks=[saver]).fit(straight, datamodule=_module(config))

    resumed = _Task(3 * 13 * 13)
    rng = _RestoreRng(checkpoint.with_suffix(".rng"))
    trainer = _trainer(tmp_path, max_steps=20, max_epochs=-1, callbacks=[rng])
    trainer.fit(resumed, datamodule=_module(config), ckpt_path=checkpoint, weights_only=True)
    assert trainer.global_step == 20
    for got, expected in zip(resumed.parameters(), straight.parameters(), strict=True):
        assert torch.equal(got, expected)


def test_lightning_run_with_bad_files_and_fewer_images_than_a_batch(tmp_path):
    write_tree(tmp_path / "pets", {"train/cat": 6, "train/dog": 5, "val/cat": 3, "val/dog": 4})
    write_bad_files(tmp_path / "pets" / "train" / "cat")
    bad = write_bad_files(tmp_path / "pets" / "val" / "dog")
    module = _module(_tree_config(tmp_path / "pets", batch_size=64, max_bad_fraction=0.3))
    task = _Task(3 * 13 * 13)
    _trainer(tmp_path, max_epochs=2, log_every_n_steps=1).fit(task, datamodule=module)
    assert task.validated == {0: 2 * 3, 1: 2 * 4}
    assert set(module.bad_files("val")) == set(map(str, bad))
    assert len(module.bad_files("train")) == 3


def test_lightning_passes_over_a_validation_batch_of_bad_files_alone(tmp_path):
    write_tree(tmp_path / "pets", {"train/cat": 6, "train/dog": 5, "val/cat": 4, "val/dog": 0})
    write_bad_files(tmp_path / "pets" / "val" / "dog")
    module = _module(_tree_config(tmp_path / "pets", batch_size=2))  # the last of four batches is bad
    task = _Task(3 * 13 * 13)
    _trainer(tmp_path, max_epochs=3).fit(task, datamodule=module)
    assert task.validated == {0: 3 * 4}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_processes_of_torch_distributed_share_the_images(tmp_path, monkeypatch, rank):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    module = _module(_tree_config(write_tree(tmp_path, {"cat": 10, "dog": 9}, size=(9, 7)), val_fraction=0.5))
    assert (module.num_train, module.num_val) == (10, 9)
    assert sum(len(labels) for _, labels in module.train_dataloader()) == 4  # 10, evened out to 12
    assert sum(len(labels) for _, labels in module.val_dataloader()) == 3
    assert module.state_dict()["world_size"] == 3
