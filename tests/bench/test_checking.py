import pytest
import torch
from helpers.quadratic import quadratic_attention

from polaformer import pola_attention
from polaformer.bench import CheckFailure, Contender, Problem, operator, published_formula, softmax
from polaformer.bench.checking import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("contender", [operator(), operator("reference"), softmax()], ids=lambda c: c.name)
def test_right_ones_pass(contender, dtype):
    check(contender, Problem(131, heads=3, channels=5, dtype=dtype).inputs())


def test_returns_the_error_of_the_output():
    q, k, v, power = Problem(37, heads=3, channels=5, dtype=torch.bfloat16).inputs()
    exact = quadratic_attention(q.double(), k.double(), v.double(), power.double()[:, None])
    expected = (published_formula().attend(q, k, v, power).double() - exact).abs().max() / exact.abs().max()
    assert check(published_formula(), (q, k, v, power)) == pytest.approx(expected.item(), rel=1e-6)


def exact(q, k, v, power):
    return pola_attention(q, k, v, power, backend="reference")


def off_by_little(q, k, v, power):
    return 1.001 * exact(q, k, v, power)


def not_a_number(q, k, v, power):
    return exact(q, k, v, power) * torch.nan


def without_gradient_of_k(q, k, v, power):
    return exact(q, k.detach(), v, power)


def wrong_at_the_last_query(q, k, v, power):
    output = exact(q, k, v, power)
    return torch.cat([output[:, :, :-1], 2 * output[:, :, -1:]], dim=2)


@pytest.mark.parametrize(
    ("attend", "message"),
    [
        (off_by_little, r"its output is off by 1.0e-03 \(at most 2e-05\) at 307 tokens in float32"),
        (not_a_number, "its output is off by nan"),
        (without_gradient_of_k, "its gradient of k is off by 1.0e[+]00"),
        (wrong_at_the_last_query, "its output is off by"),
    ],
)
def test_wrong_ones_fail(attend, message):
    with pytest.raises(CheckFailure, match=f"wrong must agree with float64 before it is timed: {message}"):
        check(Contender("wrong", attend, exact, 1.0), Problem(307, heads=3, channels=5).inputs())
