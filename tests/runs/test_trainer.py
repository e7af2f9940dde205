import logging
import warnings

import pytest
import torch

from polaformer.recipe import TrainConfig
from polaformer.runs.trainer import build_trainer, processes, quiet_lightning


@pytest.mark.parametrize(
    ("devices", "expected"), [("auto", "auto"), ("3", 3), ("[0, 2]", [0, 2]), ("1,5", [1, 5]), ("[4]", [4])]
)
def test_devices_of_the_recipe(devices, expected, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert processes(devices) == {"devices": expected, "num_nodes": 1}


def test_torchrun_decides_where_it_started_the_process(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("WORLD_SIZE", "12")
    assert processes("auto") == {"devices": 4, "num_nodes": 3}


@pytest.mark.parametrize(("precision", "expected"), [("32", "32-true"), ("64", "64-true"), ("bf16", "bf16-mixed")])
def test_precision_of_the_recipe(precision, expected):
    with quiet_lightning():
        assert build_trainer(TrainConfig(precision=precision, accelerator="cpu"), progress=False).precision == expected


def test_half_precision_needs_a_gpu():
    with quiet_lightning(), pytest.raises(ValueError, match=r"train\.precision must be 32, 64 or bf16 without a GPU"):
        build_trainer(TrainConfig(precision="16", accelerator="cpu"), progress=False)


def test_quiet_while_it_lasts_and_as_before_afterwards(caplog):
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet_lightning():
            build_trainer(TrainConfig(accelerator="cpu"), progress=False)
            assert torch.are_deterministic_algorithms_enabled()
            assert all(logger.level == logging.WARNING for logger in loggers)
    assert not torch.are_deterministic_algorithms_enabled()
    assert [logger.level for logger in loggers] == before
    assert caplog.text == ""
