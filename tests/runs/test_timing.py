import time
import warnings

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

from polaformer.runs.timing import DataWaitCallback
from polaformer.runs.trainer import quiet_lightning


class Sleeper(Dataset):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.ones(3)


class Worker(pl.LightningModule):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seconds = seconds

    def training_step(self, batch, batch_idx):
        time.sleep(self.seconds)
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(data_seconds: float, work_seconds: float, **settings) -> DataWaitCallback:
    timing = DataWaitCallback(num_workers=0, **settings)
    with quiet_lightning():
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", callbacks=[timing], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Worker(work_seconds), DataLoader(Sleeper(data_seconds), batch_size=3))
    return timing


def test_a_slow_dataset_warns_once_and_names_the_remedy():
    with pytest.warns(
        UserWarning, match=r"waits for data \d\d% of the time .*raise data\.num_workers \(now 0\)"
    ) as seen:
        timing = run(0.03, 0.0, min_wait=0.1)
    assert len(seen) == 1
    assert timing.share > 0.5
    assert timing.wait >= 12 * 0.03


def test_slow_work_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timing = run(0.0, 0.1, min_wait=0.0)
    assert timing.compute >= 4 * 0.1
    assert timing.share < 0.3


def test_a_wait_too_short_to_matter_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(0.01, 0.0).share > 0.3
