import pickle
import random

import numpy as np
import pytest
import torch
from helpers.images import write_bad_files, write_tree

from polaformer.data.datasets import EvalDataset, Failure, Sample, TrainDataset, collate, scoped_random
from polaformer.data.folders import scan_folder
from polaformer.data.transforms import evaluation_transform, training_transform
from polaformer.recipe import DataConfig

MEAN = STD = [0.5, 0.5, 0.5]
CONFIG = DataConfig(img_size=19, auto_augment="rand-m9-mstd0.5-inc1", reprob=0.5)


def _seed_globally(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _global_draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_scoped_random_is_a_function_of_its_key_and_leaves_no_trace():
    _seed_globally(1)
    expected = _global_draws()
    _seed_globally(1)
    drawn = []
    for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0)):
        with scoped_random(*key):
            drawn.append(_global_draws())
    assert _global_draws() == expected
    assert drawn[0] == drawn[4]
    assert len(set(drawn)) == 4


def test_scoped_random_restores_after_an_error():
    random.seed(2)
    state = random.getstate()
    with pytest.raises(KeyError), scoped_random(3):
        raise KeyError
    assert random.getstate() == state


@pytest.fixture
def images(tmp_path):
    return scan_folder(write_tree(tmp_path, {"cat": 6, "dog": 5}), 0.2).train


def _image(dataset: TrainDataset, key: int) -> torch.Tensor:
    image = dataset[key].image
    assert image is not None
    return image


def test_augmentation_is_a_function_of_seed_epoch_and_image(images):
    dataset = TrainDataset(images, training_transform(CONFIG, MEAN, STD), 7, 3)
    forward = [_image(dataset, key) for key in range(3 * len(dataset))]
    copy = pickle.loads(pickle.dumps(dataset))
    for key in reversed(range(3 * len(dataset))):
        assert torch.equal(_image(copy, key), forward[key])
    assert not torch.equal(forward[1], forward[1 + len(dataset)])  # another epoch
    other = TrainDataset(images, training_transform(CONFIG, MEAN, STD), 8, 3)
    assert not torch.equal(forward[1], _image(other, 1))
    assert [dataset[key].label for key in range(len(dataset))] == images.labels.tolist()


@pytest.fixture
def with_bad_files(tmp_path):
    write_tree(tmp_path / "train", {"cat": 3, "dog": 4})
    write_bad_files(tmp_path / "train" / "cat")  # sorted behind 000 to 002
    write_tree(tmp_path / "val", {"cat": 1, "dog": 1})
    return scan_folder(tmp_path)


def test_next_readable_image_of_the_class_stands_in(with_bad_files):
    images = with_bad_files.train
    dataset = TrainDataset(images, evaluation_transform(19, 3, MEAN, STD), 0, 3)
    names = [name.rsplit("/", 1)[1] for name in images.names]
    assert names[3:6] == ["bad_empty.jpg", "bad_text.jpg", "bad_truncated.jpg"]
    for index in (3, 4, 5):
        sample = dataset[index]
        torch.testing.assert_close(sample.image, dataset[0].image, rtol=0, atol=0)  # wrapped to the class's first
        assert sample.label == 0
        assert [failure.path.rsplit("/", 1)[1] for failure in sample.failures] == names[index:6]
    assert dataset[3].failures[0].reason == "is empty (0 bytes)"


def test_class_without_readable_image_gives_none(tmp_path):
    write_tree(tmp_path, {"train/cat": 0, "train/dog": 4, "val/dog": 1})
    bad = write_bad_files(tmp_path / "train" / "cat")
    with pytest.warns(UserWarning, match="no images to validate on of 'cat'"):
        images = scan_folder(tmp_path).train
    sample = TrainDataset(images, evaluation_transform(19, 3, MEAN, STD), 0, 3)[1]
    assert sample.image is None
    assert {failure.path for failure in sample.failures} == set(map(str, bad))


def test_evaluation_never_substitutes(with_bad_files):
    dataset = EvalDataset(with_bad_files.train, evaluation_transform(19, 3, MEAN, STD), 3)
    assert dataset[2].image is not None
    assert dataset[3].image is None
    assert dataset[3].failures == [Failure(with_bad_files.train.path(3), "is empty (0 bytes)")]


def test_collate_drops_what_has_no_image():
    image, bad = torch.rand(3, 5, 5), Failure("a.jpg", "is empty")
    batch = collate([Sample(image, 4, []), Sample(None, 2, [bad]), Sample(2 * image, 1, [bad])])
    torch.testing.assert_close(batch.images, torch.stack([image, 2 * image]))
    assert batch.labels.tolist() == [4, 1]
    assert batch.labels.dtype == torch.int64
    assert (batch.failures, batch.lost_labels) == ([bad, bad], [2])
    assert len(collate([Sample(None, 2, [bad])]).labels) == 0
