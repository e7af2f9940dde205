"""What the operator is compared to computes what it says, against definitions with their full matrices."""

import pytest
import torch
from helpers.quadratic import quadratic_attention

from polaformer.bench import operator, published_formula, softmax


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v, 1 + 4 * torch.rand(3, 6, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("contender", [operator(), operator("reference"), published_formula()], ids=lambda c: c.name)
def test_polarity_aware(contender):
    q, k, v, power = make_inputs()
    expected = quadratic_attention(q, k, v, power[:, None])
    torch.testing.assert_close(contender.attend(q, k, v, power), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(contender.exact(q, k, v, power), expected, rtol=1e-9, atol=1e-12)


def test_softmax():
    q, k, v, power = make_inputs()
    expected = (q @ k.mT / 6**0.5).softmax(-1) @ v
    torch.testing.assert_close(softmax().attend(q, k, v, power), expected)


def test_names_tell_backends_apart():
    assert [operator().name, operator("native").name] == ["operator", "operator, native"]
