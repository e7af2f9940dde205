"""Chunks of keys and queries give what one call over the whole gives."""

import re

import pytest
import torch
from helpers.memory import PeakMemory
from helpers.quadratic import quadratic_attention

from polaformer import PolaAttentionStream, pola_attention


def make_case(dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, n, 5, generator=generator, dtype=torch.float64) * scale for n in (11, 29))
    v = torch.randn(2, 3, 29, 7, generator=generator, dtype=torch.float64)
    power = 1 + 4 * torch.rand(3, 5, generator=generator, dtype=torch.float64)
    return tuple(x.to(dtype) for x in (q, k, v, power))


def streamed(inputs, cuts, mask=None):
    q, k, v, power = inputs
    stream = PolaAttentionStream(power)
    for start, end in zip((0, *cuts), (*cuts, k.shape[2])):
        stream.add(k[:, :, start:end], v[:, :, start:end], None if mask is None else mask[:, start:end])
    return torch.cat([stream.attend(q[:, :, :4]), stream.attend(q[:, :, 4:])], dim=2)


@pytest.mark.parametrize("cuts", [(), (1,), (13, 14), (2, 3, 5, 28)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("order", [False, True], ids=["growing keys", "shrinking keys"])
def test_chunks_equal_the_quadratic_definition(cuts, scale, order):
    q, k, v, power = make_case(scale=scale)
    k, _ = k.sort(dim=2, descending=order)
    k[:, 1, :, 2] = 0
    k[:, 2, :13, 1] = 0  # chunks of nothing but zeros in this channel come before the others
    expected = quadratic_attention(q, k, v, power[:, None])
    torch.testing.assert_close(streamed((q, k, v, power), cuts), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e4])
def test_low_precision_equals_one_call(dtype, scale):
    q, k, v, power = make_case(dtype, scale)
    output = streamed((q, k, v, power), (3, 17))
    assert output.dtype is dtype
    expected = pola_attention(q, k, v, power, backend="reference")
    torch.testing.assert_close(output, expected, rtol=2e-5 if dtype is torch.float32 else 2e-2, atol=1e-4)


def test_masked_keys_are_as_good_as_absent():
    q, k, v, power = make_case()
    mask = torch.zeros(2, 29, dtype=torch.bool)
    mask[0, 3:17] = True  # two whole chunks of the first entry
    mask[1] = True
    k[mask[:, None].expand(2, 3, 29)] = 1e9
    v[mask[:, None].expand(2, 3, 29)] = torch.nan
    output = streamed((q, k, v, power), (3, 11, 17), mask)
    kept = torch.cat([torch.arange(3), torch.arange(17, 29)])
    expected = quadratic_attention(q[:1], k[:1, :, kept], v[:1, :, kept], power[:, None])
    torch.testing.assert_close(output[:1], expected, rtol=1e-9, atol=1e-12)
    assert (output[1] == 0).all()


def test_queries_may_come_between_chunks():
    q, k, v, power = make_case()
    stream = PolaAttentionStream(power, eps=1e-3)
    stream.add(k[:, :, :13], v[:, :, :13])
    first = stream.attend(q)
    stream.add(k[:, :, 13:], v[:, :, 13:])
    for output, keys in ((first, 13), (stream.attend(q), 29)):
        expected = quadratic_attention(q, k[:, :, :keys], v[:, :, :keys], power[:, None], eps=1e-3)
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-12)


def test_a_million_tokens_in_the_memory_of_a_chunk():
    # Each chunk holds 500 keys 100 times over, at a scale of its own: their means are those of the 500 taken once.
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(1, 2, 500, c, generator=generator) for c in (16, 12))
    queries = torch.randn(1, 2, 7, 16, generator=generator)
    power = 1 + 4 * torch.rand(2, 16, generator=generator)
    scales = 2 ** torch.randn(20, generator=generator)
    stream = PolaAttentionStream(power)
    with PeakMemory() as peak:
        for scale in scales:
            stream.add((keys * scale).repeat(1, 1, 100, 1), (values + scale).repeat(1, 1, 100, 1))
            attended = stream.attend(queries.repeat(1, 1, 7143, 1))
    all_keys, all_values = torch.cat([keys * x for x in scales], dim=2), torch.cat([values + x for x in scales], dim=2)
    expected = quadratic_attention(queries.double(), all_keys.double(), all_values.double(), power.double()[:, None])
    torch.testing.assert_close(attended[:, :, -7:].double(), expected, rtol=2e-5, atol=2e-5)
    whole = 2 * 1_000_000 * (16 + 16 + 12 + 12) * 4
    assert peak.bytes < whole / 10


def test_attend_before_add_says_what_to_do():
    q, *_, power = make_case()
    with pytest.raises(RuntimeError, match="attend needs keys, got none yet: call add first"):
        PolaAttentionStream(power).attend(q)


@pytest.mark.parametrize("name", ["q", "k", "v", "power"])
def test_inputs_that_require_gradients_are_refused(name):
    case = dict(zip(("q", "k", "v", "power"), make_case()))
    stream = PolaAttentionStream(case["power"])
    case[name].requires_grad_()
    if name == "q":
        stream.add(case["k"], case["v"])
    with pytest.raises(ValueError, match=f"{name} must not require a gradient"):
        stream.attend(case["q"]) if name == "q" else stream.add(case["k"], case["v"])
    with torch.no_grad():
        stream.add(case["k"], case["v"])
        assert not stream.attend(case["q"]).requires_grad


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": torch.ones(3, 7, 5)}, "k must have 4 dimensions"),
        ({"k": torch.ones(2, 3, 7, 5).long()}, "k must have a floating-point dtype, got torch.int64"),
        ({"v": torch.ones(2, 3, 8, 4)}, "v must have k's batch, heads and tokens, (2, 3, 7, E), got shape (2, 3, 8, 4)"),
        ({"v": None}, "v must be a tensor, got NoneType"),
        ({"key_padding_mask": torch.zeros(2, 8, dtype=torch.bool)}, "key_padding_mask must have shape (batch, keys) = (2, 7)"),
        ({"k": torch.ones(2, 3, 7, 6)}, "power must have shape"),
        ({"k": torch.ones(4, 3, 7, 5), "v": torch.ones(4, 3, 7, 4)}, "k and v must have the first chunk's batch, heads and channels, (2, 3, M, 5) and (2, 3, M, 4), got shapes (4, 3, 7, 5)"),
        ({"v": torch.ones(2, 3, 7, 3)}, "k and v must have the first chunk's batch, heads and channels"),
        ({"k": torch.ones(2, 3, 7, 5).half()}, "k and v must have the first chunk's dtypes, torch.float32 and torch.float32, got torch.float16"),
        ({"q": torch.ones(2, 3, 7, 6)}, "q must have the keys' batch, heads and channels, (2, 3, N, 5), got shape (2, 3, 7, 6)"),
        ({"q": torch.ones(2, 3, 7, 5).double()}, "q must not be torch.float64 unless k, v or power is"),
        ({"q": torch.ones(2, 3, 7, 5, device="meta")}, "q must be on the device of the keys, cpu, got meta"),
        ({"q": torch.ones(7, 5)}, "q must have 4 dimensions"),
    ],
)  # fmt: skip
def test_wrong_argument(changes, message):
    keys = {"k": torch.ones(2, 3, 7, 5), "v": torch.ones(2, 3, 7, 4)}
    stream = PolaAttentionStream(torch.full((3, 5), 2.0))
    stream.add(**keys)
    with pytest.raises(ValueError, match=re.escape(message)):
        stream.attend(**changes) if "q" in changes else stream.add(**(keys | changes))


def test_wrong_option():
    with pytest.raises(ValueError, match=re.escape("eps must be > 0, got 0.0")):
        PolaAttentionStream(torch.ones(3, 5), eps=0.0)
    with pytest.raises(ValueError, match="power must be a tensor, got float"):
        PolaAttentionStream(2.0)  # pyright: ignore[reportArgumentType]
