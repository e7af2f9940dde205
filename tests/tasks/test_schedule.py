import pytest
import torch
from timm.scheduler import CosineLRScheduler

from polaformer.recipe import OptimConfig
from polaformer.tasks.schedule import build_schedule, inert_settings, total_epochs, warmup_epochs


def build(epochs=7, updates=13, images=96, **optim):
    settings = {"lr": 3e-3, "warmup_epochs": 1.5, "warmup_lr": 1e-5, "min_lr": 2e-4, **optim}
    return build_schedule(OptimConfig(**settings), epochs=epochs, updates_per_epoch=updates, images_per_update=images)


def test_every_rate_equals_timms():
    schedule = build()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3e-3)
    timm_schedule = CosineLRScheduler(
        optimizer,
        t_initial=7 * 13,
        lr_min=2e-4,
        warmup_t=round(1.5 * 13),
        warmup_lr_init=1e-5,
        t_in_epochs=False,
    )
    for update in range(7 * 13 + 9):
        timm_schedule.step_update(update)
        assert schedule.rate(update) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


def test_ends_of_the_cosine():
    schedule = build(warmup_epochs=0.0)
    assert schedule.rate(0) == 3e-3
    assert schedule.rate(7 * 13) == 2e-4
    assert schedule.rate(10**6) == 2e-4
    assert schedule.factor(0) == 1.0


def test_constant_stays_at_its_peak_after_the_warm_up():
    schedule = build(sched="constant")
    assert schedule.rate(0) == 1e-5
    assert {schedule.rate(update) for update in range(20, 300, 7)} == {3e-3}


def test_reference_batch_scales_all_rates():
    plain, scaled = build(), build(lr_batch=512)
    for update in (0, 5, 40, 91, 99):
        assert scaled.rate(update) == pytest.approx(plain.rate(update) * 96 / 512)


def test_cool_down_adds_whole_epochs_to_the_cosine_alone():
    assert total_epochs(OptimConfig(cooldown_epochs=2.5), 7) == 10
    assert total_epochs(OptimConfig(cooldown_epochs=2.5, sched="constant"), 7) == 7


def test_rate_must_be_positive():
    with pytest.raises(ValueError, match=r"optim\.lr must be positive, got 0"):
        build(lr=0.0)


def test_warm_up_that_is_not_given_fits_the_training():
    for epochs, expected in ((1, 1 / 6), (12, 2.0), (30, 5.0), (300, 5.0)):
        assert warmup_epochs(OptimConfig(), epochs) == pytest.approx(expected)
    assert warmup_epochs(OptimConfig(warmup_epochs=7.0), 3) == 7.0
    assert build(epochs=12, updates=13, warmup_epochs=None).warmup_updates == 26


def test_warm_up_as_long_as_training_is_noted():
    (note,) = inert_settings(OptimConfig(warmup_epochs=3.0), 3)
    assert note == (
        "optim.warmup_epochs should be below train.epochs = 3, got 3: the learning rate never leaves the warm-up"
    )
    assert inert_settings(OptimConfig(warmup_epochs=2.9), 3) == []
    assert inert_settings(OptimConfig(), 1) == []


def test_cool_down_without_cosine_is_noted():
    (note,) = inert_settings(OptimConfig(sched="constant", cooldown_epochs=1.0), 7)
    assert note.startswith("optim.cooldown_epochs has no effect with optim.sched constant")
