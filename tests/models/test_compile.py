"""torch.compile and torch.export of whole models."""

from typing import Any

import pytest
import timm
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from polaformer.models import PolaDeiT, PolaSwin

# The windows (8 and 4 tokens) divide the maps at every size below, as they do not cover them at any.
SMALL: dict[str, Any] = {
    "pvt": lambda: timm.create_model("pola_pvt_nano", num_classes=7, depths=(1, 1, 1, 1)),
    "swin": lambda: PolaSwin(
        img_size=128,
        embed_dim=6,
        depths=(1, 2, 1, 1),
        num_heads=(1, 2, 3, 4),
        window_size=8,
        softmax_window_size=4,
        num_classes=7,
    ),
    "deit": lambda: PolaDeiT(img_size=64, embed_dim=12, depth=2, num_heads=3, num_classes=7),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", list(SMALL))
def test_one_graph_serves_five_resolutions(family):
    torch.manual_seed(0)
    torch.compiler.reset()
    model = SMALL[family]().eval()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for size in ((256, 384), (384, 256), (512, 256), (256, 512), (384, 384)):
            x = torch.randn(3, 3, *size)
            torch.testing.assert_close(compiled(x), model(x))
    assert counter.frame_count <= 2


@pytest.mark.slow
@pytest.mark.parametrize("family", ["pvt", "deit"])
def test_the_same_graph_serves_sides_that_need_padding(family):
    torch.compiler.reset()
    model = SMALL[family]().eval()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for size in ((256, 384), (97, 131), (353, 64)):
            x = torch.randn(3, 3, *size)
            torch.testing.assert_close(compiled(x), model(x))
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", list(SMALL))
def test_compiled_gradients_equal_eager(family):
    torch.manual_seed(0)
    torch.compiler.reset()
    model = SMALL[family]().train()
    x = torch.randn(2, 3, *model.img_size)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.slow if f == "swin" else ()) for f in SMALL])
def test_export(family):
    torch.manual_seed(0)
    model = SMALL[family]().eval()
    x = torch.randn(2, 3, *model.img_size)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
    x = torch.randn(5, 3, *model.img_size)
    torch.testing.assert_close(exported.module()(x), model(x))
