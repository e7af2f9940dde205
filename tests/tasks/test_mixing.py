import pytest
import torch
from torch.nn import functional as F

from polaformer.recipe import TrainConfig
from polaformer.tasks.mixing import BatchMixer
from polaformer.tasks.randomness import seed_generators

CLASSES = 5


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.rand(size, 3, 11, 13, generator=generator), torch.randint(CLASSES, (size,), generator=generator)


def mix(size: int, seed: int = 3, **train):
    images, labels = batch(size)
    seed_generators(seed)
    return BatchMixer(TrainConfig(**train), CLASSES)(images, labels)


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_mixup_is_the_weighted_mean_with_the_mirrored_batch(size):
    mixed, targets = mix(size, mixup=0.8, smoothing=0.2)
    images, labels = batch(size)
    smooth = F.one_hot(labels, CLASSES) * 0.8 + 0.2 / CLASSES
    weight = next(
        w
        for w in torch.linspace(0, 1, 20001)
        if torch.allclose(w * images + (1 - w) * images.flip(0), mixed, atol=1e-4)
    )
    torch.testing.assert_close(targets, weight * smooth + (1 - weight) * smooth.flip(0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 5, 6])
def test_cutmix_takes_each_pixel_from_one_of_two_and_weighs_targets_by_area(size):
    mixed, targets = mix(size, cutmix=1.0, smoothing=0.0)
    images, labels = batch(size)
    own = (mixed == images).all(1)
    other = (mixed == images.flip(0)).all(1)
    assert bool((own | other).all())
    share = own[0].float().mean() if size > 1 else torch.tensor(1.0)
    hot = F.one_hot(labels, CLASSES)
    torch.testing.assert_close(targets, share * hot + (1 - share) * hot.flip(0))


def test_the_middle_of_an_odd_batch_meets_itself():
    mixed, targets = mix(7, mixup=1.0, smoothing=0.0)
    images, labels = batch(7)
    torch.testing.assert_close(mixed[3], images[3])
    torch.testing.assert_close(targets[3], F.one_hot(labels[3], CLASSES).float())


def test_the_given_batch_is_left_as_it_was():
    images, labels = batch(6)
    before = images.clone()
    BatchMixer(TrainConfig(mixup=1.0), CLASSES)(images, labels)
    torch.testing.assert_close(images, before, rtol=0, atol=0)


def test_both_are_drawn_by_the_switch():
    def is_cut(seed: int) -> bool:
        mixed, _ = mix(4, seed=seed, mixup=1.0, cutmix=1.0, mixup_switch_prob=0.5)
        return bool((mixed == batch(4)[0]).all(1).any())

    assert {is_cut(seed) for seed in range(12)} == {True, False}
