import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from polaformer.data.digits import load_digits_split


def test_digits_are_split_once_and_for_all():
    split = load_digits_split()
    assert split.class_names == list("0123456789")
    assert (len(split.train), len(split.val)) == (1438, 359)
    assert np.bincount(split.val.labels).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    names = [images.path(index) for images in (split.train, split.val) for index in range(len(images))]
    assert len(set(names)) == 1797
    assert [split.val.path(index) for index in range(3)] == [load_digits_split().val.path(index) for index in range(3)]
    assert split.val.path(0) != load_digits_split(split_seed=1).val.path(0)


def test_scans_are_scikit_learns_in_8_bits():
    split = load_digits_split()
    scans, labels = load_digits(return_X_y=True)
    number = int(split.val.path(7).rsplit("/", 1)[1])
    picture = split.val.load(7, 1)
    assert (picture.mode, picture.size) == ("L", (8, 8))
    np.testing.assert_allclose(np.asarray(picture), scans[number].reshape(8, 8) * 255 / 16, atol=0.5)
    assert split.val.labels[7] == labels[number]
    assert split.val.load(7, 3).mode == "RGB"


def test_missing_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'polaformer\[train\]'"):
        load_digits_split()
