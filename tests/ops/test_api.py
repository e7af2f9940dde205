"""The operator's numbers: against the quadratic definition, at every scale and dtype, on degenerate inputs."""

import pytest
import torch
from helpers.quadratic import quadratic_attention
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polaformer import pola_attention
from polaformer.ops import reference

SCALES = [1e-3, 1e-2, 1.0, 16.0, 1e4]
LIMITS = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def make_inputs(batch, heads, queries, keys, channels, values, *, seed=0, scale=1.0, one_signed=False, alpha=4.0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, queries, channels, generator=generator, dtype=torch.float64) * scale
    k = torch.randn(batch, heads, keys, channels, generator=generator, dtype=torch.float64) * scale
    v = torch.randn(batch, heads, keys, values, generator=generator, dtype=torch.float64)
    power = 1 + alpha * torch.rand(heads, channels, generator=generator, dtype=torch.float64)
    return (q.abs(), k.abs(), v, power) if one_signed else (q, k, v, power)


def gradients(function, inputs, grad):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    return output.detach(), torch.autograd.grad(output, leaves, grad)


def definition_of(inputs, mask=None):
    q, k, v, power = inputs
    return quadratic_attention(q, k, v, power[:, None], mask)


def relative(actual, expected, floor=0.0):
    """Largest difference over the largest expected magnitude; floor: what the storage dtype cannot tell from zero."""
    difference = (actual.double() - expected).abs().max()
    return (difference / expected.abs().max().clamp(min=floor or 1e-300)).item()


# The fixture only chooses a backend: examples cannot disturb each other.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.tuples(*[st.integers(1, 7)] * 6),
    seed=st.integers(0, 2**16),
    log_scale=st.floats(-3, 4),
    one_signed=st.booleans(),
    masked=st.booleans(),
    alpha=st.floats(0, 7),
)
def test_float64_equals_quadratic_definition(attend, sizes, seed, log_scale, one_signed, masked, alpha):
    inputs = make_inputs(*sizes, seed=seed, scale=10**log_scale, one_signed=one_signed, alpha=alpha)
    generator = torch.Generator().manual_seed(seed + 1)
    mask = torch.rand(sizes[0], sizes[3], generator=generator) < 0.4 if masked else None
    grad = torch.randn(*sizes[:3], sizes[5], generator=generator, dtype=torch.float64)

    def ours(q, k, v, p):
        return attend(q, k, v, p, key_padding_mask=mask)

    def definition(q, k, v, p):
        return quadratic_attention(q, k, v, p[:, None], mask)

    output, grads = gradients(ours, inputs, grad)
    expected, expected_grads = gradients(definition, inputs, grad)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-12)
    # Terms of this size cancel where a gradient is small (one key: it comes from ε alone), in the definition too.
    term = grad.abs().max() * inputs[2].abs().max() * inputs[3].max() * sizes[2] * sizes[3]
    smallest = min(x.abs().min().item() for x in inputs[:2])
    for actual, wanted in zip(grads, expected_grads):
        atol = 1e-9 * wanted.abs().max() + 1e-14 * term / min(smallest, 1)
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=atol.item())


def test_hand_computed_case(attend):
    # One head, two keys, p = 2. q = (2, -1): a = (4, 0), b = (0, 1). k₁ = (1, 3): a = (1, 9), b = 0. k₂ = (-1, -2): a = 0, b = (1, 4).
    # s = (4·1, 1·4) = (4, 4); o = (1·9, 4·1) = (9, 4). v₁ = (10, 20), v₂ = (100, 200); ε = 0.5.
    q = torch.tensor([[[[2.0, -1.0]]]])
    k = torch.tensor([[[[1.0, 3.0], [-1.0, -2.0]]]])
    v = torch.tensor([[[[10.0, 100.0], [20.0, 200.0]]]])
    output = attend(q, k, v, torch.full((1, 2), 2.0), eps=0.5)
    expected = torch.tensor([[[[(4 * 10 + 4 * 20) / 2 / (8 / 2 + 0.5), (9 * 100 + 4 * 200) / 2 / (13 / 2 + 0.5)]]]])
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(
    "autocast", [None, torch.float16, torch.bfloat16], ids=["plain", "autocast-fp16", "autocast-bf16"]
)
@pytest.mark.parametrize("dtype", LIMITS, ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("one_signed", [False, True], ids=["two-signed", "one-signed"])
@pytest.mark.parametrize("alpha", [4.0, 7.0])
@pytest.mark.parametrize("scale", SCALES)
def test_low_precision_equals_float64(attend, scale, alpha, one_signed, dtype, autocast):
    sizes = (2, 3, 131, 257, 31, 37)
    inputs = [x.to(dtype) for x in make_inputs(*sizes, scale=scale, one_signed=one_signed, alpha=alpha)]
    inputs[3] = make_inputs(*sizes, alpha=alpha)[3].float()
    stored = [x.double() for x in inputs]
    # A loss scaler's work: gradients of q and k go as 1 / scale, those of v as 1, and float16 can store neither end.
    grad = (torch.randn(2, 3, 131, 37, generator=torch.Generator().manual_seed(5)) * scale**0.5).to(dtype)
    expected, expected_grads = gradients(
        lambda q, k, v, p: quadratic_attention(q, k, v, p[:, None]), stored, grad.double()
    )

    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        output, grads = gradients(attend, inputs, grad)
    assert output.dtype is dtype
    assert output.isfinite().all()
    assert relative(output, expected, torch.finfo(dtype).tiny) <= LIMITS[dtype]
    for name, x, actual, wanted in zip(["q", "k", "v", "power"], inputs, grads, expected_grads):
        assert actual.dtype is x.dtype
        assert actual.isfinite().all(), name
        assert relative(actual, wanted, torch.finfo(x.dtype).tiny) <= 10 * LIMITS[dtype], name


@pytest.mark.parametrize("channels", [1, 3, 31, 48, 192])
@pytest.mark.parametrize(("queries", "keys", "values"), [(1, 1, 1), (17, 1, 2), (1, 255, 3), (257, 43, 5)])
def test_any_size(attend, channels, queries, keys, values):
    q, k, v, power = make_inputs(2, 3, queries, keys, channels, values)
    torch.testing.assert_close(
        attend(q, k, v, power), quadratic_attention(q, k, v, power[:, None]), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (3, 1), (3, 5), (3, 1, 5), (2, 3, 1, 5), (2, 1, 1, 1)], ids=str)
def test_power_broadcasts_and_its_gradient_has_its_shape(attend, shape):
    q, k, v, _ = make_inputs(2, 3, 7, 11, 5, 4)
    power = 1 + torch.rand(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    power.requires_grad_()
    full = power[:, None] if power.ndim == 2 else power
    output, expected = attend(q, k, v, power), quadratic_attention(q, k, v, full)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-12)
    (grad,) = torch.autograd.grad(output.square().sum(), power)
    (wanted,) = torch.autograd.grad(expected.square().sum(), power)
    torch.testing.assert_close(grad, wanted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, *LIMITS], ids=["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "case",
    [
        "zero q",
        "zero query rows",
        "zero k",
        "zero key channel",
        "constant keys",
        "all negative",
        "all masked",
        "one key",
        "wide",
    ],
)
def test_degenerate_inputs_are_finite_forward_and_backward(attend, case, dtype):
    q, k, v, power = make_inputs(2, 3, 7, 1 if case == "one key" else 11, 5, 4, scale=50.0 if case == "wide" else 1.0)
    mask = None
    if case == "zero q":
        q = torch.zeros_like(q)
    elif case == "zero query rows":
        q[:, :, ::3] = 0
    elif case == "zero k":
        k = torch.zeros_like(k)
    elif case == "zero key channel":
        k[..., 2] = 0
        q[..., 2] = 1e4  # must not push the other channels of the query below the smallest number
    elif case == "constant keys":
        k = torch.full_like(k, 0.7)
    elif case == "all negative":
        q, k = -q.abs(), -k.abs()
    elif case == "all masked":
        mask = torch.zeros(2, 11, dtype=torch.bool)
        mask[1] = True
    inputs = [x.to(dtype) for x in (q, k, v, power)]
    grad = torch.ones(2, 3, 7, 4, dtype=dtype)
    output, grads = gradients(lambda *x: attend(*x, key_padding_mask=mask), inputs, grad)
    for x in (output, *grads):
        assert x.isfinite().all()
    stored = [x.double() for x in inputs]
    expected = definition_of(stored, mask)
    limit = LIMITS.get(dtype, 1e-9)
    torch.testing.assert_close(output.double(), expected, rtol=limit, atol=limit * v.abs().max().item())
    if case == "all masked":
        assert (output[1] == 0).all()
        assert all((x[1] == 0).all() for x in grads[:3])


def test_masked_keys_are_as_good_as_absent(attend):
    q, k, v, power = make_inputs(2, 3, 7, 11, 5, 4)
    mask = torch.zeros(2, 11, dtype=torch.bool)
    mask[0, 8:] = True
    mask[1, [0, 3, 10]] = True
    k[mask[:, None].expand(2, 3, 11)] = 1e4
    v[mask[:, None].expand(2, 3, 11)] = torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    output = attend(q, k, v, power, key_padding_mask=mask)
    for i in range(2):
        keep = ~mask[i]
        single = attend(q[i : i + 1], k[i : i + 1, :, keep], v[i : i + 1, :, keep], power)
        torch.testing.assert_close(output[i : i + 1], single, rtol=1e-12, atol=1e-12)
    _, grad_k, grad_v = torch.autograd.grad(output.sum(), leaves)
    for grad in (grad_k, grad_v):
        assert (grad[mask[:, None].expand(2, 3, 11)] == 0).all()


def test_tiny_and_huge_channels_of_one_query_meet(attend):
    # The exponents differ by far more than float32 can hold, and only one channel may survive.
    q = torch.tensor([[[[1e-3, 1e4, 1.0]]]])
    k = torch.tensor([[[[1e4, 1e-3, 1.0], [-1e4, 1e-3, 2.0]]]])
    v = torch.tensor([[[[1.0, 2.0], [3.0, 5.0]]]])
    power = torch.tensor([[8.0, 8.0, 8.0]])
    expected = quadratic_attention(q.double(), k.double(), v.double(), power.double()[:, None])
    assert relative(attend(q, k, v, power), expected) <= 2e-5


def test_one_signed_gradients_stay_finite_under_a_large_loss_scale(attend):
    # The opposite stream is exactly 0, and its ε alone is e^-80 in the scale of these queries.
    q, k, v, power = (x.float() for x in make_inputs(1, 1, 5003, 7, 3, 4, scale=1e4, one_signed=True))
    grad = torch.randn(1, 1, 5003, 4, generator=torch.Generator().manual_seed(2)) * 65536
    _, grads = gradients(attend, (q, k, v, power), grad)
    definition = gradients(
        lambda q, k, v, p: quadratic_attention(q, k, v, p[:, None]),
        [x.double() for x in (q, k, v, power)],
        grad.double(),
    )
    for actual, wanted in zip(grads, definition[1]):
        assert relative(actual, wanted) <= 2e-4


def test_gradients_at_zero_are_zero(attend):
    for p in (0.5, 1.0, 1.5, 3.0):
        q, k, v, _ = make_inputs(1, 1, 3, 5, 2, 4)
        q[..., 0], k[..., 1, 1] = 0, 0
        power = torch.full((1, 2), p, dtype=torch.float64)
        leaves = [x.requires_grad_() for x in (q, k, v, power)]
        grads = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
        assert all(x.isfinite().all() for x in grads)
        assert (grads[0][..., 0] == 0).all()
        assert (grads[1][..., 1, 1] == 0).all()


def test_float32_islands_are_what_keeps_autocast_exact(monkeypatch):
    """If the arithmetic followed autocast, the accuracy test above would have to fail."""
    inputs = [x.float() for x in make_inputs(2, 3, 131, 257, 31, 37)]
    expected = definition_of([x.double() for x in inputs])
    monkeypatch.setattr(reference, "_without_autocast", lambda x: torch.autocast("cpu", torch.float16))
    assert relative(pola_attention(*inputs, backend="reference"), expected) > LIMITS[torch.float32]


def test_non_contiguous_views_give_the_same(attend):
    fused = torch.randn(2, 13, 3, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q, k, v = fused.permute(2, 0, 3, 1, 4)
    power = torch.full((3, 5), 2.5, dtype=torch.float64)
    copied = attend(q.contiguous(), k.contiguous(), v.contiguous(), power)
    assert torch.equal(attend(q, k, v, power), copied)


def test_mixed_dtypes_return_the_dtype_of_v(attend):
    q, k, v, power = make_inputs(1, 2, 3, 5, 7, 4)
    output = attend(q.float(), k.bfloat16(), v.half(), power.float())
    assert output.dtype is torch.float16
    expected = quadratic_attention(q.float().double(), k.bfloat16().double(), v.half().double(), power[:, None])
    assert relative(output, expected) <= 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "dtype"),
    [(n, torch.float32) for n in (1, 17, 255, 257, 12544, 43884, 66800)]
    + [(n, dtype) for n in (257, 12544) for dtype in (torch.bfloat16, torch.float16)],
)
def test_long_sequences_equal_float64(attend, tokens, dtype):
    q, k, v, power = make_inputs(1, 1, tokens, tokens, 31, 37)
    inputs = [*(x.to(dtype) for x in (q, k, v)), power.float()]
    grad = torch.randn(1, 1, tokens, 37, generator=torch.Generator().manual_seed(5)).to(dtype)
    # The quadratic definition does not fit in memory here; float64 arithmetic was checked against it above.
    expected, expected_grads = gradients(attend, [x.double() for x in inputs], grad.double())
    output, grads = gradients(attend, inputs, grad)
    assert relative(output, expected) <= LIMITS[dtype]
    for actual, wanted in zip(grads, expected_grads):
        # With one key everything but ε cancels in the gradients of q and k: what is left is rounding of terms of size 1.
        floor = 1.0 if tokens == 1 else torch.finfo(actual.dtype).tiny
        assert actual.isfinite().all()
        assert relative(actual, wanted, floor) <= 10 * LIMITS[dtype]


@pytest.mark.parametrize(("scale", "exponent"), [(1e-3, 3.0), (1e-2, 5.0)])
def test_gradients_survive_where_eps_swamps_the_weights(attend, scale, exponent):
    q, k, v, _ = make_inputs(1, 2, 7, 11, 5, 4, scale=scale)
    inputs = [*(x.float() for x in (q, k, v)), torch.full((2, 5), exponent)]
    grad = torch.randn(1, 2, 7, 4, generator=torch.Generator().manual_seed(3))
    _, grads = gradients(attend, inputs, grad)
    stored = [x.double() for x in inputs]
    _, expected = gradients(lambda q, k, v, p: quadratic_attention(q, k, v, p[:, None]), stored, grad.double())
    for actual, wanted in zip(grads, expected):
        assert wanted.abs().max() > 0
        assert relative(actual, wanted) <= 2e-4
