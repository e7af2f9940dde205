import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from polaformer.runs.ema import EmaCallback
from polaformer.runs.trainer import quiet_lightning


class Line(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(3, 1)
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch, batch_idx):
        return self.model(batch[0]).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx) -> None:
        self.seen.append(self.model.weight.detach().clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3)


def test_average_is_the_recursion_from_the_first_update_on():
    torch.manual_seed(4)
    task, average = Line(), EmaCallback(0.7)
    with quiet_lightning():
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", callbacks=[average], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(task, DataLoader(TensorDataset(torch.randn(15, 3)), batch_size=3))
    expected = task.seen[0]
    for weights in task.seen[1:]:
        expected = 0.7 * expected + 0.3 * weights
    torch.testing.assert_close(average.averaged_model.get_parameter("weight"), expected)
    torch.testing.assert_close(task.model.weight.detach(), expected)


@pytest.mark.parametrize("decay", [0.0, 1.0, 1.5])
def test_decay_must_be_a_share(decay):
    with pytest.raises(ValueError, match=r"train\.ema_decay must lie between 0 and 1, got"):
        EmaCallback(decay)
