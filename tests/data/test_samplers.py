import numpy as np
import pytest

from polaformer.data.samplers import EvalBatchSampler, TrainBatchSampler


def _images(sampler: TrainBatchSampler) -> list[int]:
    return [key % sampler.num_images for batch in sampler for key in batch]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_training_drops_nothing_and_gives_each_process_equal_steps(world_size):
    samplers = [TrainBatchSampler(23, 4, 1, rank, world_size) for rank in range(world_size)]
    seen = [_images(sampler) for sampler in samplers]
    assert len({len(images) for images in seen}) == 1
    assert [len(list(sampler)) for sampler in samplers] == [len(samplers[0])] * world_size
    flat = np.stack(seen, axis=1).ravel()
    assert sorted(flat[:23]) == list(range(23))
    np.testing.assert_array_equal(flat[23:], flat[: len(flat) - 23])  # padding is the start once more
    assert len(flat) - 23 < world_size


def test_more_processes_than_images():
    seen = [_images(TrainBatchSampler(2, 4, 1, rank, 5)) for rank in range(5)]
    assert [len(images) for images in seen] == [1] * 5
    assert {image for images in seen for image in images} == {0, 1}


def test_order_is_a_function_of_seed_and_epoch():
    orders = {
        (seed, epoch): tuple(TrainBatchSampler(101, 7, seed).order(epoch)) for seed in (0, 1) for epoch in (0, 1, 2)
    }
    assert len(set(orders.values())) == 6
    assert tuple(TrainBatchSampler(101, 13, 1).order(2)) == orders[1, 2]
    assert TrainBatchSampler(11, 7, 5).order(3).tolist() == [8, 7, 4, 3, 1, 6, 10, 9, 2, 5, 0]


def test_keys_carry_the_epoch():
    sampler = TrainBatchSampler(5, 2, 0)
    sampler.set_epoch(3)
    keys = [key for batch in sampler for key in batch]
    assert sorted(keys) == [15, 16, 17, 18, 19]


def test_position_is_where_iteration_starts():
    sampler = TrainBatchSampler(23, 4, 1)
    whole = [batch for epoch in range(2) for batch in (sampler.set_epoch(epoch), list(sampler))[1]]
    assert len(whole) == 12
    sampler.set_position(0, 2)
    assert list(sampler) == whole[2:6]
    sampler.set_position(0, 6)  # all of epoch 0
    assert (sampler.epoch, sampler.batches_done) == (1, 0)
    assert list(sampler) == whole[6:]


def test_advance_and_set_epoch():
    sampler = TrainBatchSampler(7, 3, 1)
    sampler.advance()
    sampler.set_epoch(0)  # inside this epoch already
    assert (sampler.epoch, sampler.batches_done) == (0, 1)
    sampler.advance()
    sampler.advance()
    assert (sampler.epoch, sampler.batches_done) == (1, 0)
    sampler.advance()
    sampler.set_epoch(2)
    assert (sampler.epoch, sampler.batches_done) == (2, 0)


def test_state_round_trip_and_its_limits():
    sampler = TrainBatchSampler(23, 4, 1)
    sampler.set_position(2, 5)
    state = sampler.state_dict()
    assert state == {"epoch": 2, "batches_done": 5, "num_images": 23, "batch_size": 4, "world_size": 1}
    other = TrainBatchSampler(23, 4, 1)
    other.load_state_dict(state)
    assert other.state_dict() == state
    with pytest.raises(ValueError, match="must go on with batch_size 4, got 5; a checkpoint from the end of an epoch"):
        TrainBatchSampler(23, 5, 1).load_state_dict(state)
    with pytest.raises(ValueError, match="must go on with num_images 23, got 24"):
        TrainBatchSampler(24, 4, 1).load_state_dict(state)
    with pytest.raises(ValueError, match="must go on with world_size 1, got 2"):
        TrainBatchSampler(23, 4, 1, 0, 2).load_state_dict(state)
    state["batches_done"] = 0
    grown = TrainBatchSampler(24, 5, 1)
    grown.load_state_dict(state)  # the end of an epoch is free of all that
    assert (grown.epoch, grown.batches_done) == (2, 0)


@pytest.mark.parametrize("position", [(-1, 0), (0, -1), (0, 7)])
def test_position_out_of_range(position):
    with pytest.raises(ValueError, match=r"position must be an epoch ≥ 0 and 0\.\.6 batches"):
        TrainBatchSampler(23, 4, 1).set_position(*position)


@pytest.mark.parametrize("world_size", [1, 2, 3, 103])
def test_evaluation_sees_each_image_once(world_size):
    samplers = [EvalBatchSampler(101, 8, rank, world_size) for rank in range(world_size)]
    assert sorted(image for sampler in samplers for batch in sampler for image in batch) == list(range(101))
    assert [len(list(sampler)) for sampler in samplers] == [len(sampler) for sampler in samplers]
