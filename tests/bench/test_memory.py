"""Peak memory: of functions whose allocations are known, of what custom operators do inside, and of the operator."""

import functools

import pytest
import torch

from polaformer import list_backends, pola_attention
from polaformer.bench import peak_bytes

CPU = torch.device("cpu")


def test_peak_is_not_the_sum():
    def run():
        torch.empty(300_000, dtype=torch.uint8)
        torch.empty(500_000, dtype=torch.uint8)

    assert peak_bytes(run, CPU) == 500_000


def test_what_is_held_adds_up_and_what_was_there_before_does_not_count():
    before = torch.empty(700_000, dtype=torch.uint8)

    def run():
        first = before.clone()
        return first, first.clone()

    assert peak_bytes(run, CPU) == 1_400_000


@torch.library.custom_op("polaformer_test::scratch", mutates_args=())
def scratch(x: torch.Tensor) -> torch.Tensor:
    torch.empty(900_000, dtype=torch.uint8)
    return x.clone()


def test_sees_allocations_inside_custom_operators():
    x = torch.empty(100, dtype=torch.uint8)
    assert peak_bytes(lambda: scratch(x), CPU) == 900_000


def test_error_inside_is_passed_on_and_the_next_call_is_measured():
    with pytest.raises(ZeroDivisionError):
        peak_bytes(lambda: 1 // 0, CPU)
    assert peak_bytes(lambda: torch.empty(1000, dtype=torch.uint8), CPU) == 1000


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_operator_forward_and_backward_is_linear_in_tokens(backend):
    reason = {status.name: status.reason for status in list_backends()}[backend]
    if reason:
        pytest.skip(reason)

    def peak(tokens):
        q = torch.randn(2, 3, tokens, 31, requires_grad=True)
        power = torch.full((3, 31), 2.5, requires_grad=True)
        grad = torch.ones(2, 3, tokens, 31)
        attend = functools.partial(pola_attention, backend=backend)
        return peak_bytes(lambda: torch.autograd.grad(attend(q, q, q, power), [q, power], grad), CPU)

    assert peak(4 * 1031) / peak(1031) <= 4.3
