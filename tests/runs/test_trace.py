from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from polaformer.runs.trace import trace_non_finite


class Blow(torch.autograd.Function):
    """The identity, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * float("nan")


class Residual(nn.Module):
    """Two branches of one input, of which the second may have a broken gradient, and a parameter of its own."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(7, 7)
        self.second = nn.Sequential(nn.Linear(7, 7), nn.ReLU(inplace=True), nn.Linear(7, 7))
        self.gain = nn.Parameter(torch.ones(7))
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        branch = self.second(x)
        if self.broken:
            branch = Blow.apply(branch)
        return self.first(x) + self.gain * branch


def network(broken: bool = False) -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), Residual(), Residual(broken), Residual(), nn.Linear(7, 3))


def trace(model: nn.Module, images: Tensor | None = None):
    images = torch.randn(4, 5) if images is None else images
    return trace_non_finite(model, images, lambda: model(images).square().mean())


def test_a_healthy_step_has_no_finding_and_is_left_as_it_was():
    model = network()
    assert trace(model) is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["0", "1.first", "2.second.2", "4"])
def test_names_the_first_module_with_an_output_that_is_not_finite(name):
    model = network()
    with torch.no_grad():
        model.get_submodule(name).bias[1] = float("inf")
    finding = trace(model)
    assert finding is not None
    assert finding.module == name
    assert finding.description.endswith(f"comes from module '{name}' (Linear), whose parameter 'bias' is not finite")


def test_a_module_that_computes_in_its_own_forward_is_named_itself():
    model = network()
    with torch.no_grad():
        model[2].gain.fill_(float("nan"))
    finding = trace(model)
    assert finding is not None
    assert (finding.module, "Residual" in finding.description) == ("2", True)


def test_names_the_module_in_which_a_gradient_breaks():
    finding = trace(network(broken=True))
    assert finding is not None
    assert finding.module == "2"
    assert finding.description == "the first gradient that is not finite arises in module '2' (Residual)"


def test_names_a_layer_inside_whose_gradient_breaks():
    model = network()
    model[1].second[0] = Residual(broken=True)
    finding = trace(model)
    assert finding is not None
    assert finding.module == "1.second.0"


def test_images_and_loss_are_told_apart_from_modules():
    finding = trace(network(), torch.full((4, 5), float("nan")))
    assert finding is not None
    assert finding.module is None
    model = network()
    images = torch.randn(4, 5)
    finding = trace_non_finite(model, images, lambda: model(images).sum() * float("inf"))
    assert finding is not None
    assert (finding.module, "loss" in finding.description) == ("", True)
    finding = trace_non_finite(model, images, lambda: Blow.apply(model(images)).sum())
    assert finding is not None
    assert (finding.module, "with respect to the network's outputs" in finding.description) == ("", True)


def test_finds_its_way_in_a_backbone():
    model = timm.create_model("test_vit", num_classes=3, img_size=32)
    with torch.no_grad():
        model.get_parameter("blocks.3.attn.proj.weight")[0, 0] = float("nan")
    images = torch.randn(3, 3, 32, 32)
    finding = trace_non_finite(model, images, lambda: model(images).mean())
    assert finding is not None
    assert finding.module == "blocks.3.attn.proj"
