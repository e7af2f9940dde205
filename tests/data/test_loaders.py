import logging
import shutil

import pytest
import torch
from helpers.images import write_bad_files, write_tree

from polaformer.data import loaders
from polaformer.data.datasets import EvalDataset, TrainDataset
from polaformer.data.folders import scan_folder
from polaformer.data.loaders import EvalLoader, TrainLoader
from polaformer.data.samplers import EvalBatchSampler, TrainBatchSampler
from polaformer.data.split import LabelledImages
from polaformer.data.transforms import evaluation_transform, training_transform
from polaformer.recipe import DataConfig

MEAN = STD = [0.5, 0.5, 0.5]
CONFIG = DataConfig(img_size=17, auto_augment="rand-m9-mstd0.5-inc1", reprob=0.5)


def _train_loader(
    images: LabelledImages, num_workers: int = 0, batch_size: int = 4, max_bad_fraction: float = 0.5
) -> TrainLoader:
    dataset = TrainDataset(images, training_transform(CONFIG, MEAN, STD), 3, 3)
    sampler = TrainBatchSampler(len(images), batch_size, 3)
    return TrainLoader(dataset, sampler, num_workers, max_bad_fraction, ["cat", "dog"])


def _eval_loader(images: LabelledImages, num_workers: int = 0, rank: int = 0, world_size: int = 1) -> EvalLoader:
    dataset = EvalDataset(images, evaluation_transform(17, 3, MEAN, STD), 3)
    return EvalLoader(dataset, EvalBatchSampler(len(images), 4, rank, world_size), num_workers)


def _take(loader: TrainLoader, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The next batches, over ends of epochs."""
    batches = []
    while len(batches) < count:
        for batch in loader:
            batches.append(batch)
            if len(batches) == count:
                break
    return batches


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = write_tree(tmp_path_factory.mktemp("pets"), {"train/cat": 13, "train/dog": 10, "val/cat": 1, "val/dog": 1})
    return scan_folder(root).train


@pytest.fixture
def tree_with_bad_files(tmp_path):
    """50 training images, of which a truncated, an empty and a text file."""
    write_tree(tmp_path, {"train/cat": 23, "train/dog": 24, "val/cat": 4, "val/dog": 5})
    bad = write_bad_files(tmp_path / "train" / "cat")
    return tmp_path, [str(path) for path in bad]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_eleven_and_nine_batches_after_a_restart_are_twenty(images, num_workers):
    straight = _take(_train_loader(images), 20)
    first = _train_loader(images, num_workers)
    begun = _take(first, 11)
    state = first.state_dict()
    assert (state["epoch"], state["batches_done"]) == (1, 5)  # six batches an epoch
    first.shutdown()
    second = _train_loader(images, num_workers)
    second.load_state_dict(state)
    for got, expected in zip(begun + _take(second, 9), straight, strict=True):
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
    second.shutdown()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_leaves_the_main_processs_random_numbers_alone(images, num_workers):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    loader = _train_loader(images, num_workers)
    _take(loader, 7)
    list(_eval_loader(images, num_workers))
    assert torch.equal(torch.rand(3), expected)
    loader.shutdown()


def test_each_pass_is_the_next_epoch_and_all_images_are_in_it(images):
    loader = _train_loader(images, batch_size=64)
    (first,), (second,) = list(loader), list(loader)
    assert len(first[1]) == len(second[1]) == 23
    assert not torch.equal(first[0], second[0])
    loader.sampler.set_epoch(0)
    assert torch.equal(next(iter(loader))[0], first[0])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_training_files_are_logged_once_and_replaced(tree_with_bad_files, num_workers, caplog):
    root, bad = tree_with_bad_files
    loader = _train_loader(scan_folder(root).train, num_workers, max_bad_fraction=0.06)
    with caplog.at_level(logging.WARNING, "polaformer"):
        labels = [torch.cat([labels for _, labels in loader]) for _ in range(2)]
    assert [torch.bincount(epoch).tolist() for epoch in labels] == [[26, 24]] * 2
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 3
    assert all(sum(path in message for message in logged) == 1 for path in bad)
    assert set(loader.bad_files) == set(bad)
    loader.shutdown()


def test_too_many_bad_files_stop_the_run(tree_with_bad_files):
    root, bad = tree_with_bad_files
    loader = _train_loader(scan_folder(root).train, max_bad_fraction=0.05)
    with pytest.raises(ValueError, match=r"3 of 50 training images cannot be read.*max_bad_fraction = 0\.05") as caught:
        list(loader)
    assert any(path in str(caught.value) for path in bad)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_class_without_readable_image_stops_the_run(tmp_path, num_workers):
    write_tree(tmp_path, {"train/cat": 0, "train/dog": 24, "val/cat": 1, "val/dog": 1})
    write_bad_files(tmp_path / "train" / "cat")
    loader = _train_loader(scan_folder(tmp_path).train, num_workers)
    with pytest.raises(
        ValueError, match=r"class 'cat' has no readable training image, the last tried is .*bad_"
    ) as caught:
        list(loader)
    assert "\n" not in str(caught.value)
    loader.shutdown()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_counts_do_not_depend_on_processes(tmp_path, world_size, caplog):
    write_tree(tmp_path, {"cat": 49, "dog": 49}, size=(9, 7))
    bad = write_bad_files(tmp_path / "dog")
    images = scan_folder(tmp_path, 1.0).val
    assert len(images) == 101
    counts = torch.zeros(2, dtype=torch.int64)
    total = 0.0
    named: list[str] = []
    for rank in range(world_size):
        loader = _eval_loader(images, 0, rank, world_size)
        for pictures, labels in loader:
            counts += torch.bincount(labels, minlength=2)
            total += pictures.double().sum().item()
        named += loader.bad_files
    assert counts.tolist() == [49, 49]
    assert sorted(named) == sorted(map(str, bad))
    assert total == pytest.approx(sum(x.double().sum().item() for x, _ in _eval_loader(images)), rel=1e-12)


def test_batch_of_bad_files_alone_is_passed_over(tmp_path):
    write_tree(tmp_path, {"cat": 0, "dog": 5}, size=(9, 7))
    for number in range(4):
        shutil.copy(write_bad_files(tmp_path / "cat")[0], tmp_path / "cat" / f"another_{number}.jpg")
    loader = _eval_loader(scan_folder(tmp_path, 1.0).val)  # three batches of four: only bad, three bad, good
    assert [labels.tolist() for _, labels in loader] == [[1], [1, 1, 1, 1]]
    assert len(loader.bad_files) == 7


def test_no_more_workers_than_cores(images, monkeypatch):
    monkeypatch.setattr(loaders, "_cores", lambda: 3)
    assert _train_loader(images, num_workers=64).num_workers == 3
    assert _train_loader(images, num_workers=2).num_workers == 2
