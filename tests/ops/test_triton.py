"""The Triton backend without a GPU: its kernels in Triton's interpreter and through Triton's compiler, and what chooses them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from polaformer import pola_attention
from polaformer.ops import list_backends, triton
from polaformer.ops.triton import configs, tuning
from polaformer.ops.triton.configs import Config, Device, NoConfigError, Problem

HERE = Path(__file__).parent
GPU = Device("Some GPU", 108, 166912)
HALF = Problem(GPU, (torch.float16,) * 3, 64, 64)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run_fresh(*arguments, **environment):
    environment = {**os.environ, **environment}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


@needs_triton
@pytest.mark.parametrize("group", ["TestLoops", "TestValues", "TestMask", "TestArguments", "TestFallback"])
def test_kernels_in_the_interpreter(group):
    tests = f"{HERE / 'interpreted_triton.py'}::{group}"
    result = run_fresh("-m", "pytest", "-q", "-p", "no:cacheprovider", tests, TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout + result.stderr


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(("capability", "dtype"), [(80, "fp16"), (90, "bf16"), (90, "fp32")])
def test_kernels_compile_and_need_the_shared_memory_that_was_estimated(capability, dtype, tmp_path):
    code = HERE / "compile_triton.py"
    result = run_fresh(str(code), str(capability), dtype, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert result.returncode == 0, result.stderr[-3000:]
    needed = json.loads(result.stdout)
    itemsize = 4 if dtype == "fp32" else 2
    assert len(needed) == 6
    assert max(needed.values()) <= configs.shared_memory(configs.CONFIGS[0], itemsize)


def test_without_triton_all_else_works():
    code = (
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "import torch, timm, polaformer\n"
        "from polaformer.ops import list_backends\n"
        "print({s.name: s.reason for s in list_backends()}['triton'])\n"
        "model = timm.create_model('pola_pvt_tiny', num_classes=3)\n"
        "model(torch.randn(1, 3, 32, 32)).sum().backward()\n"
        "q = torch.randn(1, 2, 7, 5)\n"
        "try:\n"
        "    polaformer.pola_attention(q, q, q, torch.full((2, 5), 2.0), backend='triton')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    result = run_fresh("-W", "error::UserWarning", "-c", code)
    assert result.returncode == 0, result.stderr
    reason, error = result.stdout.splitlines()
    assert reason.startswith("Triton cannot be used: ModuleNotFoundError")
    assert error == f"backend 'triton' cannot be used: {reason}"


def test_importing_the_package_does_not_import_triton():
    code = "import sys, polaformer.ops.triton\nsys.exit('polaformer.ops.triton.forward_kernels' in sys.modules)"
    assert run_fresh("-c", code).returncode == 0


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_named_with_its_reason():
    assert ("triton", False, "it needs a GPU, and PyTorch sees none") in list_backends()
    q = torch.randn(1, 2, 7, 5)
    with pytest.raises(ValueError, match="'triton' cannot be used: it needs a GPU, and PyTorch sees none"):
        pola_attention(q, q, q, torch.full((2, 5), 2.0), backend="triton")


def test_the_guard_is_that_of_the_tensors_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: ("guard of", device))
    assert triton._on_device(torch.device("cuda", 1)) == ("guard of", torch.device("cuda", 1))


class TestConfigs:
    @pytest.fixture(autouse=True)
    def _forget(self, monkeypatch):
        monkeypatch.setattr(configs, "_failures", {})
        monkeypatch.delenv("POLAFORMER_AUTOTUNE", raising=False)

    def test_blocks_are_no_larger_than_the_problem_and_at_least_16(self):
        for config in configs.candidates_for(HALF._replace(channels=17, values=1), 3):
            assert (config.rows, config.values) == (16, 16)
            assert config.channels in (16, 32)

    def test_shared_memory_filters(self):
        all_fit = configs.candidates_for(HALF, 4096)
        small = configs.candidates_for(HALF._replace(device=Device("small", 40, 65536)), 4096)
        assert all_fit[0] == configs.CONFIGS[0]
        assert small == [c for c in all_fit if configs.shared_memory(c, 2) <= 65536]
        assert 0 < len(small) < len(all_fit)

    @pytest.mark.parametrize("tokens", [1, 49, 255, 256, 257, 3136, 65536, 10**9])
    @pytest.mark.parametrize("programs", [1, 7, 4096])
    def test_chunks_hold_all_tokens_and_none_is_empty(self, tokens, programs):
        chunks, chunk = configs.split(tokens, programs, GPU)
        assert chunks * chunk >= tokens > (chunks - 1) * chunk
        assert chunk % configs.LARGEST_ROWS == 0
        assert chunks == 1 or chunks * programs <= 2 * GPU.processors + programs

    def test_the_next_config_is_taken_and_the_failing_one_not_tried_again(self):
        tried = []

        def run(config):
            tried.append(config)
            if config.rows == 32:
                raise RuntimeError("out of resource: shared memory")
            return config

        first = configs.launch("key_state", HALF, 4096, run)
        again = configs.launch("key_state", HALF, 4096, run)
        assert first == again == configs.CONFIGS[1]
        assert tried == [configs.CONFIGS[0], first, first]

    def test_the_reason_is_that_of_the_last(self):
        def run(config):
            raise TypeError(f"no keyword for {config.rows}\nand a long listing")

        for _ in range(2):
            with pytest.raises(NoConfigError, match=r"^TypeError in key_state: no keyword for 16$"):
                configs.launch("key_state", HALF, 4096, run)

    def test_out_of_memory_is_raised(self):
        def run(config):
            raise torch.OutOfMemoryError("CUDA out of memory")

        with pytest.raises(torch.OutOfMemoryError):
            configs.launch("key_state", HALF, 4096, run)


class TestTuning:
    @pytest.fixture(autouse=True)
    def _setting(self, monkeypatch, tmp_path):
        monkeypatch.setenv("POLAFORMER_AUTOTUNE", "1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(tuning, "_known", {})
        monkeypatch.setattr(configs, "_failures", {})

    @pytest.fixture
    def measured(self, monkeypatch):
        """A timer that finds the fewest warps fastest; returns its calls."""
        calls = []

        def measure(run):
            calls.append(run())
            return calls[-1].warps, calls[-1].rows

        monkeypatch.setattr(tuning, "measure", measure)
        return calls

    @staticmethod
    def launch(tokens, problem=HALF):
        return configs.launch("query_output", problem, tokens, lambda config: config)

    def test_the_fastest_is_taken(self, measured):
        assert self.launch(4096) == Config(16, 16, 16, 2, 1)
        assert sorted(measured) == sorted(configs.CONFIGS)

    def test_twenty_resolutions_measure_once_a_power_of_four(self, measured):
        for side in range(14, 14 + 20 * 3, 3):  # 196 to 5041 tokens
            self.launch(side * side)
        assert len(measured) == 4 * len(configs.CONFIGS)  # up to 256, 1024, 4096, 16384

    def test_a_second_process_measures_nothing(self, measured, monkeypatch):
        self.launch(3136)
        count = len(measured)
        monkeypatch.setattr(tuning, "_known", {})  # as a new process has it
        assert self.launch(3000) == Config(16, 16, 16, 2, 1)
        assert len(measured) == count

    def test_other_dtypes_channels_and_devices_have_their_own(self, measured):
        others = [
            HALF,
            HALF._replace(dtypes=(torch.float32,) * 3),
            HALF._replace(values=48),
            HALF._replace(device=GPU._replace(name="Another")),
        ]
        counts = [self.launch(4096, problem) and len(measured) for problem in others]
        assert counts == sorted(set(counts))

    def test_configs_that_do_not_run_are_left_out(self, measured):
        def run(config):
            if config.warps < 8:
                raise RuntimeError("out of resource: registers")
            return config

        assert configs.launch("query_output", HALF, 4096, run) == Config(32, 64, 64, 8, 2)
        assert {config.warps for config in measured} == {8}

    def test_a_corrupt_file_is_measured_anew_with_a_warning(self, measured, monkeypatch, tmp_path):
        self.launch(4096)
        (file,) = tmp_path.rglob("*.json")
        file.write_text('{"rows": 3')
        monkeypatch.setattr(tuning, "_known", {})
        with pytest.warns(UserWarning, match="is measured anew, it cannot be read"):
            self.launch(4096)
        assert json.loads(file.read_text())["warps"] == 2

    def test_a_stored_config_that_is_no_more_is_measured_anew(self, measured, monkeypatch, tmp_path):
        self.launch(4096)
        count = len(measured)
        (file,) = tmp_path.rglob("*.json")
        file.write_text(json.dumps(Config(48, 48, 48, 1, 1)._asdict()))
        monkeypatch.setattr(tuning, "_known", {})
        assert self.launch(4096) == Config(16, 16, 16, 2, 1)
        assert len(measured) == 2 * count

    def test_a_folder_that_cannot_be_written_warns(self, measured, monkeypatch, tmp_path):
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.warns(UserWarning, match="cannot be kept"):
            assert self.launch(4096) == Config(16, 16, 16, 2, 1)

    def test_nothing_half_written_is_left(self, measured, tmp_path):
        self.launch(4096)
        assert [file.suffix for file in tmp_path.rglob("*") if file.is_file()] == [".json"]

    def test_without_asking_nothing_is_measured(self, measured, monkeypatch, tmp_path):
        monkeypatch.setenv("POLAFORMER_AUTOTUNE", "0")
        assert self.launch(4096) == configs.CONFIGS[0]
        assert measured == []
        assert list(tmp_path.iterdir()) == []

    def test_another_value_is_refused(self, monkeypatch):
        monkeypatch.setenv("POLAFORMER_AUTOTUNE", "yes")
        with pytest.raises(ValueError, match="POLAFORMER_AUTOTUNE must be 0 or 1, got 'yes'"):
            self.launch(4096)
