from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from torch import nn

from polaformer.runs.guard import NonFiniteError, NonFiniteGuard
from polaformer.tasks.classification import ClassificationTask


class Picky(nn.Module):
    """A layer, with an infinite gradient where its input exceeds 100: the slope of a root at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        y = self.layer(x)
        return y + (y - y.detach()).abs().sqrt() if x.max() > 100 else y


def run_update(batches: list, plugin: Any = None, loss_factor: float = 1.0) -> None:
    """What Lightning does with the batches of one update, up to the optimiser step."""
    torch.manual_seed(0)
    task: Any = ClassificationTask(nn.Sequential(nn.Linear(3, 3), Picky()), 3)
    with torch.no_grad():
        task.model[0].weight.copy_(torch.eye(3))
        task.model[0].bias.zero_()
    trainer: Any = SimpleNamespace(
        accumulate_grad_batches=len(batches), current_epoch=2, global_step=17, world_size=1,
        precision_plugin=plugin or Precision(),
    )  # fmt: skip
    guard = NonFiniteGuard()
    for index, batch in enumerate(batches):
        guard.on_train_batch_start(trainer, task, batch, 30 + index)
        loss = task.training_loss(batch, 2, 30 + index) * loss_factor
        guard.on_before_backward(trainer, task, loss)
        loss.backward()
    guard.on_before_optimizer_step(trainer, task, SimpleNamespace())  # type: ignore[arg-type]


def batch(value: float = 1.0):
    return torch.full((4, 3), value), torch.tensor([0, 1, 2, 0])


def test_finite_updates_pass():
    run_update([batch(), batch(2.0)])


def test_names_the_module_and_the_batch_of_a_broken_gradient():
    with pytest.raises(
        NonFiniteError, match=r"gradient is not finite at step 17: .*'1' \(Picky\) \(epoch 2, batch 31\)"
    ) as e:
        run_update([batch(), batch(1000.0), batch()])
    assert (e.value.step, e.value.what, e.value.module) == (17, "gradient", "1")


def test_names_broken_images():
    with pytest.raises(NonFiniteError, match="loss is not finite at step 17: the images of the batch") as e:
        run_update([batch(float("nan"))])
    assert e.value.module is None


def test_says_so_when_running_again_shows_nothing():
    with pytest.raises(NonFiniteError, match="no module shows it when epoch 2, batch 30 is run again") as e:
        run_update([batch()], loss_factor=float("inf"))
    assert e.value.module is None


@pytest.mark.parametrize(("scale", "stops"), [(65536.0, False), (2.0, False), (1.0, True)])
def test_the_loss_scaler_may_probe_until_its_scale_is_one(scale, stops):
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=scale))
    plugin.forward_context = nullcontext  # type: ignore[method-assign]
    plugin.scaler.scale(torch.ones(()))
    with pytest.raises(NonFiniteError) if stops else nullcontext():
        run_update([batch(1000.0)], plugin)
