from typing import Any

import pytest
import timm
from torch import nn

from polaformer.tasks.freezing import freeze_parameters


def network() -> nn.Module:
    return nn.ModuleDict(
        {
            "stem": nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)),
            "body": nn.Sequential(nn.Conv2d(5, 7, 3), nn.BatchNorm2d(7), nn.BatchNorm2d(7, affine=False)),
            "head": nn.Linear(7, 2),
        }
    )


def test_matching_parameters_stop_and_the_rest_goes_on():
    model = network()
    freeze_parameters(model, ["stem*", "body.0.weight"])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias", "body.0.weight"}


def test_names_the_frozen_layers_with_running_statistics():
    model: Any = network()
    assert freeze_parameters(model, ["stem*", "body.1.weight"]) == [model["stem"][1]]
    assert freeze_parameters(network(), []) == []


@pytest.mark.parametrize(
    ("pattern", "nearest"), [("patch_embd*", "patch_embed"), ("blocks.9.attn*", r"blocks\.\d\.attn"), ("hed", "head")]
)
def test_a_pattern_that_matches_nothing_names_the_nearest(pattern, nearest):
    model = timm.create_model("test_vit", num_classes=3)
    with pytest.raises(ValueError, match=rf"model\.freeze must match parameter names, got '{pattern[:5]}.*{nearest}"):
        freeze_parameters(model, [pattern])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_something_must_be_left_to_train():
    with pytest.raises(ValueError, match="leave something to train"):
        freeze_parameters(network(), ["*"])
