import pytest
import torch

from polaformer.bench import CheckFailure, NetworkProblem, Spread, network, time_networks

PROBLEM = NetworkProblem(image_size=(64, 32), batch_size=3)


@pytest.fixture
def called(monkeypatch):
    """The n-th function takes n seconds and is run once; names in the order of the measurements."""
    names = []

    def time_in_turn(functions, rounds, device):
        names.append(list(functions))
        for function in functions.values():
            function()
        return {name: [float(number)] * rounds for number, name in enumerate(functions, start=1)}

    monkeypatch.setattr(network, "time_in_turn", time_in_turn)
    return names


def test_latency_of_one_image_and_throughput_of_many_are_apart(called):
    (pola, other) = time_networks(["pola_pvt_nano", "resnet18"], PROBLEM, rounds=7)
    assert called == [["pola_pvt_nano", "resnet18"]] * 3
    assert [pace.batch_size for pace in (other.latency, other.throughput, other.training)] == [1, 3, 3]
    assert other.latency.seconds == other.latency.ratio == Spread(2.0, 2.0, 2.0)
    assert (other.latency.images_per_second, other.throughput.images_per_second) == (1 / 2, 3 / 2)
    assert (pola.image_size, other.parameters) == ((64, 32), 11_689_512)
    # Gradients of all weights lie there in training.
    assert other.latency.peak_bytes < other.throughput.peak_bytes < 4 * other.parameters <= other.training.peak_bytes
    assert 0 < pola.error < 1e-4


def test_every_backend_of_networks_that_have_the_operator(called):
    timings = time_networks(["pola_pvt_nano", "test_vit"], NetworkProblem(), backends=["auto", "reference"])
    assert [each.model for each in timings] == ["pola_pvt_nano", "pola_pvt_nano, reference", "test_vit"]
    assert [each.image_size for each in timings] == [(32, 32), (32, 32), (160, 160)]


def test_half_precision_is_autocast(called):
    (timing,) = time_networks(["pola_pvt_nano"], NetworkProblem(dtype=torch.bfloat16))
    assert 1e-4 < timing.error < 1e-1


def test_wrong_network_is_not_timed(monkeypatch):
    monkeypatch.setattr(network, "time_in_turn", None)
    monkeypatch.setattr(network, "BOUNDS", {torch.float32: 0.0})
    with pytest.raises(
        CheckFailure, match=r"pola_pvt_nano must agree with float64 before it is timed: its logits are off"
    ):
        time_networks(["pola_pvt_nano"], PROBLEM)


def test_unknown_model():
    with pytest.raises(ValueError, match="model must be a timm model, got pola_pvt_tny"):
        time_networks(["pola_pvt_tny"], PROBLEM)
