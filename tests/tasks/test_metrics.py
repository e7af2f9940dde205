import pytest
import torch

from polaformer.tasks.metrics import MeanLoss


def test_mean_over_the_counted_images_of_uneven_batches():
    metric = MeanLoss()
    metric.update(torch.tensor([1.0, 2.0, 40.0]), torch.tensor([True, True, False]))
    metric.update(torch.tensor([6.0]), torch.tensor([True]))
    assert metric.compute() == pytest.approx(3.0)
    metric.update(torch.tensor([float("nan")]), torch.tensor([False]))
    assert metric.compute() == pytest.approx(3.0)
