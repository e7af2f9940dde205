"""What torch's counter says of the operator: the formula, the same for every backend, forward and backward."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from polaformer import pola_attention, pola_attention_varlen
from polaformer.ops import reference

SIZES = {"batch": 2, "heads": 3, "queries": 7, "keys": 11, "channels": 5, "values": 13}


def make_inputs(batch, heads, queries, keys, channels, values):
    q, k = torch.randn(batch, heads, queries, channels), torch.randn(batch, heads, keys, channels)
    return [q, k, torch.randn(batch, heads, keys, values), torch.full((heads, channels), 2.5)]


def multiply_adds(function):
    with FlopCounterMode(display=False) as counter:
        function()
    flops = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2


def test_forward_and_backward__every_backend(attend):
    inputs = [x.requires_grad_() for x in make_inputs(**SIZES)]
    # Two heads' worth of batch, [2·5, 11] by [11, 13 + 2], and [7, 2·5] by [2·5, 13 + 2].
    by_hand = 2 * 3 * (10 * 11 * 15 + 7 * 10 * 15)
    assert multiply_adds(lambda: attend(*inputs)) == by_hand
    assert multiply_adds(lambda: attend(*inputs).sum().backward()) == 4 * by_hand


def test_packed_sequences_count_what_their_calls_one_by_one_would():
    q, k, v, power = make_inputs(**SIZES | {"batch": 1})
    q, k, v = (x[0].transpose(0, 1).requires_grad_() for x in (q, k, v))
    at_q, at_k = torch.tensor([0, 3, 7]), torch.tensor([0, 9, 11])
    by_hand = 3 * (10 * 11 * 15 + 7 * 10 * 15)
    assert multiply_adds(lambda: pola_attention_varlen(q, k, v, power, at_q, at_k)) == by_hand
    assert multiply_adds(lambda: pola_attention_varlen(q, k, v, power, at_q, at_k).sum().backward()) == 4 * by_hand


def test_formula_equals_the_products_that_the_reference_computes():
    q, k, v, power = make_inputs(**SIZES)
    grad = torch.randn(2, 3, 7, 13)
    by_operator = multiply_adds(lambda: pola_attention(q, k, v, power))
    assert multiply_adds(lambda: reference.forward(q, k, v, power, None, 1e-6)) == by_operator
    assert multiply_adds(lambda: reference.backward(grad, q, k, v, power, None, 1e-6)) == 3 * by_operator


@pytest.mark.parametrize("grown", ["queries", "keys"])
def test_cost_is_linear_in_tokens(grown):
    def cost(tokens):
        return multiply_adds(lambda: pola_attention(*make_inputs(**SIZES | {grown: tokens})))

    assert cost(303) - cost(202) == cost(202) - cost(101) > 0


def test_module_that_calls_it_is_charged():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v, power):
            return pola_attention(q, k, v, power)

    with FlopCounterMode(display=False) as counter:
        Attend()(*make_inputs(**SIZES))
    assert list(counter.get_flop_counts()["Attend"]) == [torch.ops.polaformer.pola_attention]


def test_importing_without_triton_is_silent():
    code = "import sys; sys.modules['triton'] = sys.modules['triton.runtime.jit'] = None; import polaformer.ops"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
