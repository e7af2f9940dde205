"""The operator passes through everything torch can do to a function."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from polaformer import pola_attention


class Attend(nn.Module):
    """The smallest module around the operator."""

    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.full((3, 5), 2.5))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return pola_attention(q, k, v, self.power, key_padding_mask=mask).tanh()


def make_case(batch=2, queries=7, keys=11):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, 3, n, c, generator=generator) for n, c in ((queries, 5), (keys, 5), (keys, 4)))
    mask = torch.zeros(batch, keys, dtype=torch.bool)
    mask[0, -2:] = True
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), mask


def outcome(function, case, module):
    inputs = [case[0], case[1], case[2], module.power]
    output = function(*case)
    return output, torch.autograd.grad(output.square().sum(), inputs)


def assert_same_outcome(function, module, case=None):
    case = case or make_case()
    output, grads = outcome(function, case, module)
    expected, expected_grads = outcome(module, case, module)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(grads, expected_grads)


@pytest.mark.slow
def test_compile_fullgraph_with_dynamic_sizes():
    module = Attend()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for sizes in ((2, 7, 11), (3, 13, 17), (5, 19, 29)):
        assert_same_outcome(compiled, module, make_case(*sizes))


def test_export_keeps_the_operator():
    module = Attend()
    case = tuple(x.detach() for x in make_case())
    tokens = torch.export.Dim("tokens")
    shapes = ({}, {2: tokens}, {2: tokens}, {1: tokens})
    exported = torch.export.export(module, case, dynamic_shapes=shapes)
    assert any(node.target is torch.ops.polaformer.pola_attention.default for node in exported.graph.nodes)
    longer = tuple(x.detach() for x in make_case(keys=23))
    torch.testing.assert_close(exported.module()(*longer), module(*longer))


def test_fx_trace():
    module = Attend()
    assert_same_outcome(torch.fx.symbolic_trace(module), module)


def test_torchscript():
    module = Attend()
    assert_same_outcome(torch.jit.script(module), module)


def test_torchscript_of_fx_trace():
    module = Attend()
    assert_same_outcome(torch.jit.script(torch.fx.symbolic_trace(module)), module)


def test_activation_checkpointing():
    module = Attend()
    assert_same_outcome(lambda *case: checkpoint(module, *case, use_reentrant=False), module)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # opcheck's own
def test_opcheck():
    q, k, v, mask = make_case()
    power = torch.full((3, 5), 2.5, requires_grad=True)
    torch.library.opcheck(torch.ops.polaformer.pola_attention, (q, k, v, power, mask, 1e-6, "auto"))
    torch.library.opcheck(torch.ops.polaformer.pola_attention, (q, k, v, power, None, 1e-6, "reference"))


def test_meta_tensors_give_the_shape():
    q, k, v, mask = (x.detach().to("meta") for x in make_case())
    output = pola_attention(q, k, v, torch.ones(3, 5, device="meta"), key_padding_mask=mask)
    assert output.shape == (2, 3, 7, 4)
    assert output.device.type == "meta"


def test_frozen_inputs_need_no_gradient():
    q, k, v, mask = (x.detach() for x in make_case())
    power = torch.full((3, 5), 2.0, requires_grad=True)
    (grad,) = torch.autograd.grad(pola_attention(q, k, v, power, key_padding_mask=mask).sum(), power)
    assert grad.shape == power.shape


def test_second_derivatives_are_refused():
    q, k, v, mask = make_case()
    power = torch.full((3, 5), 2.0)
    (grad,) = torch.autograd.grad(pola_attention(q, k, v, power, key_padding_mask=mask).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(grad.sum(), q)


def dual_output(q, k, tangent):
    with forward_ad.dual_level():
        return pola_attention(forward_ad.make_dual(q, tangent), k, k, torch.full((3, 5), 2.0))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "differentiate",
    [
        lambda f, q, k, t: torch.func.jvp(lambda x: f(x, k, k, torch.full((3, 5), 2.0)), (q,), (t,)),
        lambda f, q, k, t: torch.func.jvp(lambda p: f(q, k, k, p), (torch.ones(3, 5),), (torch.ones(3, 5),)),
        lambda f, q, k, t: torch.func.jacfwd(lambda x: f(q, k, x, torch.full((3, 5), 2.0)))(k),
        lambda f, q, k, t: dual_output(q, k, t),
    ],
    ids=["jvp of q", "jvp of power", "jacfwd of v", "dual level"],
)
def test_forward_mode_is_refused(differentiate, requires_grad):
    q, k = (x.detach().requires_grad_(requires_grad) for x in make_case()[:2])
    with pytest.raises(RuntimeError, match="pola_attention has derivatives by backward only"):
        differentiate(pola_attention, q, k, torch.ones_like(q))


def test_forward_mode_over_constants_passes():
    q, k, v, _ = (x.detach() for x in make_case())
    power = torch.full((3, 5), 2.0)
    x = torch.ones(2, 3, 7, 4)
    _, tangent = torch.func.jvp(lambda x: x * pola_attention(q, k, v, power), (x,), (3 * x,))  # pyright: ignore[reportAssignmentType]
    torch.testing.assert_close(tangent, 3 * pola_attention(q, k, v, power))
