import numpy as np
import pytest

from polaformer.data.split import DataSplit, class_table, held_out

NAMES = [
    f"{label}/{number:03d}.png" for label, count in (("a", 31), ("b", 7), ("c", 2), ("d", 1)) for number in range(count)
]
LABELS = np.array(["abcd".index(name[0]) for name in NAMES])


def _chosen(order: np.ndarray, fraction: float = 0.2, seed: int = 3) -> set[str]:
    names = [NAMES[index] for index in order]
    return {name for name, out in zip(names, held_out(names, LABELS[order], fraction, seed)) if out}


def test_split_is_stratified_with_an_image_on_each_side():
    counts = np.bincount(LABELS[held_out(NAMES, LABELS, 0.2, 3)], minlength=4)
    assert counts.tolist() == [6, 1, 1, 0]
    assert np.bincount(LABELS[held_out(NAMES, LABELS, 0.01, 3)], minlength=4).tolist() == [1, 1, 1, 0]
    assert np.bincount(LABELS[held_out(NAMES, LABELS, 0.99, 3)], minlength=4).tolist() == [30, 6, 1, 0]
    assert held_out(NAMES, LABELS, 1.0, 3).all()


def test_split_ignores_the_order_of_listing_and_heeds_the_seed():
    order = np.arange(len(NAMES))
    shuffled = np.random.default_rng(5).permutation(len(NAMES))
    assert _chosen(order) == _chosen(shuffled)
    assert _chosen(order, seed=3) != _chosen(order, seed=4)


def test_split_is_the_same_on_every_machine():
    # The smallest of `printf 3/b/001.png | sha256sum` and so on.
    assert sorted(_chosen(np.arange(31, 41), fraction=0.4)) == ["b/001.png", "b/003.png", "b/006.png", "c/000.png"]


def test_composed_and_decomposed_accents_are_one_name():
    names = [f"é{number}" for number in range(29)]
    labels = np.zeros(29, dtype=int)
    decomposed = [name.replace("é", "e\u0301") for name in names]
    np.testing.assert_array_equal(held_out(names, labels, 0.3, 0), held_out(decomposed, labels, 0.3, 0))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, float("nan")])
def test_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match="val_fraction must be above 0 and at most 1, got"):
        held_out(NAMES, LABELS, fraction, 0)


class _Labels:
    def __init__(self, labels):
        self.labels = np.array(labels)


def test_class_table_counts_and_shortens():
    split = DataSplit(["ant", "zebra", "yak"], _Labels([0, 0, 2]), _Labels([1]), None)  # type: ignore[arg-type]
    assert class_table(split, most=2).splitlines() == [
        "       class    train      val",
        "    0  ant          2        0",
        "    1  zebra        0        1",
        "       ... and 1 more classes",
        "       all          3        1",
    ]
