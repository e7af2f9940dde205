import pickle

import numpy as np
import pytest

from polaformer.data.packed import PackedStrings

STRINGS = ["", "a.png", "Größe/ü.png", "日本/猫.jpg", "bad\udcffbyte.png", "a.png"]


def test_strings_come_back():
    packed = PackedStrings(STRINGS)
    assert list(packed) == STRINGS
    assert packed[3] == STRINGS[3]
    assert len(packed) == len(STRINGS)
    assert list(PackedStrings([])) == []


@pytest.mark.parametrize("index", [-1, 6])
def test_index_out_of_range(index):
    with pytest.raises(IndexError, match=rf"index must be in 0\.\.5, got {index}"):
        PackedStrings(STRINGS)[index]


def test_many_paths_are_two_arrays():
    count = 100_003
    packed = PackedStrings(f"class_{number % 101}/image_{number:07d}.jpg" for number in range(count))
    assert all(type(value) is np.ndarray for value in vars(packed).values())
    characters = sum(len(f"class_{number % 101}/image_0000000.jpg") for number in range(count))
    assert len(pickle.dumps(packed)) < characters + 8 * (count + 1) + 1_000
    assert packed[100_002] == f"class_{100_002 % 101}/image_0100002.jpg"
