import random

import numpy as np
import torch

from polaformer.tasks.randomness import seed_generators


def draw(*place: int) -> tuple[float, float, float]:
    seed_generators(*place)
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_the_same_place_draws_the_same():
    first = draw(5, 2, 31, 0)
    draw(5, 2, 32, 0)
    assert draw(5, 2, 31, 0) == first


def test_seed_epoch_batch_and_rank_each_change_all_three_generators():
    places = [(5, 2, 31, 0), (6, 2, 31, 0), (5, 3, 31, 0), (5, 2, 30, 0), (5, 2, 31, 1), (5,)]
    for column in zip(*(draw(*place) for place in places)):
        assert len(set(column)) == len(places)
