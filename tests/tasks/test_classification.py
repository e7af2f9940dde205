from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from polaformer.recipe import OptimConfig, TrainConfig
from polaformer.tasks.classification import IGNORED, ClassificationTask, build_optimizer


class Logits(nn.Module):
    """Gives back what it is fed, times one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, images):
        return self.gain * images


def vit(**args) -> Any:
    torch.manual_seed(1)
    return timm.create_model("test_vit", num_classes=3, img_size=32, **args)


def batch(size: int = 5):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(size, 3, 32, 32, generator=generator), torch.randint(3, (size,), generator=generator)


def test_loss_is_smoothed_cross_entropy():
    logits, labels = torch.randn(7, 11, dtype=torch.float64), torch.arange(7)
    task = ClassificationTask(Logits(), 11, train=TrainConfig(smoothing=0.3))
    log_probabilities = logits - torch.logsumexp(logits, 1, keepdim=True)
    targets = F.one_hot(labels, 11) * 0.7 + 0.3 / 11
    expected = -(targets * log_probabilities).sum(1).mean()
    torch.testing.assert_close(task.training_loss((logits, labels), 0, 0), expected)


def test_loss_is_a_function_of_the_place_alone():
    task = ClassificationTask(vit(drop_path_rate=0.5), 3, train=TrainConfig(mixup=0.5, cutmix=0.5, seed=4))
    first = task.training_loss(batch(), 1, 6)
    torch.rand(17)
    np.random.rand(3)
    assert torch.equal(task.training_loss(batch(), 1, 6), first)
    assert not torch.equal(task.training_loss(batch(), 1, 7), first)
    assert not torch.equal(task.training_loss(batch(), 2, 6), first)


def score(task: ClassificationTask, batches) -> dict[str, float]:
    task.log_dict = lambda *_, **__: None
    for number, (images, labels) in enumerate(batches):
        task.validation_step((images, labels), number)
    names = ("top1", "top5", "mean_loss", "num_images")
    return {name: float(getattr(task, name).compute()) for name in names}


def test_metrics_count_images_and_leave_out_the_ignored():
    generator = torch.Generator().manual_seed(8)
    logits, labels = torch.randn(101, 13, generator=generator), torch.randint(13, (101,), generator=generator)
    labels[[3, 50, 51]] = IGNORED
    scores = score(ClassificationTask(Logits(), 13), zip(logits.split(17), labels.split(17)))
    kept = labels != IGNORED
    order = logits[kept].numpy().argsort(1)[:, ::-1]
    truth = labels[kept].numpy()
    assert scores["num_images"] == 98
    assert scores["top1"] == pytest.approx(np.mean(order[:, 0] == truth), abs=1e-7)
    assert scores["top5"] == pytest.approx(np.mean((order[:, :5] == truth[:, None]).any(1)), abs=1e-7)
    assert scores["mean_loss"] == pytest.approx(float(F.cross_entropy(logits[kept], labels[kept])), rel=1e-5)


def test_a_batch_of_nothing_but_ignored_images_counts_for_nothing():
    logits = torch.randn(6, 4)
    one = [(logits[:3], torch.tensor([0, 1, 2]))]
    nothing = [(logits[3:], torch.full((3,), IGNORED))]
    assert score(ClassificationTask(Logits(), 4), one + nothing) == score(ClassificationTask(Logits(), 4), one)


def test_two_classes_have_a_top_5_of_one():
    logits = torch.randn(7, 2)
    assert score(ClassificationTask(Logits(), 2), [(logits, torch.ones(7, dtype=torch.int64))])["top5"] == 1.0


def test_optimizer_decays_matrices_alone_and_by_the_models_list():
    model = vit()
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.3, betas=(0.7, 0.8), eps=1e-5), lr=2e-3)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0.3 for p in group["params"]}
    for name, parameter in model.named_parameters():
        exempt = parameter.ndim <= 1 or name in ("pos_embed", "cls_token")
        assert (id(parameter) in decayed) != exempt, name
    assert {(group["lr"], group["betas"], group["eps"]) for group in optimizer.param_groups} == {
        (2e-3, (0.7, 0.8), 1e-5)
    }


def test_layer_decay_lowers_the_rate_towards_the_input():
    model = vit()
    optimizer = build_optimizer(model, OptimConfig(layer_decay=0.5), lr=1.0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    depth = len(model.blocks)
    assert rates[id(named["head.weight"])] == 1.0
    for block in range(1, depth):
        assert rates[id(named[f"blocks.{block}.attn.qkv.weight"])] == pytest.approx(
            2 * rates[id(named[f"blocks.{block - 1}.attn.qkv.weight"])]
        )


def test_frozen_parameters_are_not_the_optimizers():
    task = ClassificationTask(vit(), 3, freeze=["blocks*", "patch_embed*"])
    optimizer = build_optimizer(task.model, OptimConfig(), lr=1e-3)
    given = sum(len(group["params"]) for group in optimizer.param_groups)
    assert given == sum(not n.startswith(("blocks", "patch_embed")) for n, _ in task.model.named_parameters())


@pytest.mark.parametrize("name", ["sgd", "adan", "lamb"])
def test_other_optimizers_take_what_of_the_recipe_they_know(name):
    assert build_optimizer(vit(), OptimConfig(opt=name), lr=1e-3).param_groups[0]["lr"] == 1e-3


def test_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="adamq"):
        build_optimizer(vit(), OptimConfig(opt="adamq"), lr=1e-3)


def test_frozen_batch_norm_keeps_its_statistics():
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    task = ClassificationTask(model, 4, freeze=["0.*", "1.*"])
    task.train()
    assert [module.training for module in model] == [True, False, True, True]
    model(torch.randn(5, 3, 9, 9))
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert not torch.equal(model[3].running_mean, torch.zeros(4))


def test_a_module_saves_no_hyper_parameters():
    assert not ClassificationTask(Logits(), 4).hparams
