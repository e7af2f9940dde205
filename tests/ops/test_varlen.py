"""Packed sequences: equal to one call a sequence, and to the padded call with masks."""

from typing import Any

import pytest
import torch

import polaformer
from polaformer.ops import backends, reference, varlen

# The tests pass their arguments as lists and dictionaries.
pola_attention: Any = polaformer.pola_attention
pola_attention_varlen: Any = polaformer.pola_attention_varlen

HEADS, CHANNELS, VALUES = 3, 5, 7
# An empty sequence, queries without keys, keys without queries, one token, more keys than queries and fewer.
LENGTHS_Q = [11, 0, 3, 0, 1, 17]
LENGTHS_K = [13, 0, 0, 2, 1, 5]


def boundaries(lengths, dtype=torch.int32):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=dtype)


def make_inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (
        torch.randn(n, HEADS, c, generator=generator, dtype=torch.float64).to(dtype)
        for n, c in (
            (sum(LENGTHS_Q), CHANNELS),
            (sum(LENGTHS_K), CHANNELS),
            (sum(LENGTHS_K), VALUES),
            (sum(LENGTHS_Q), VALUES),
        )
    )
    power = 1 + 4 * torch.rand(HEADS, CHANNELS, generator=generator, dtype=torch.float64)
    return q, k, v, power.to(torch.float64 if dtype is torch.float64 else torch.float32), grad


def one_call_a_sequence(q, k, v, power):
    outputs = []
    for queries, keys, values in zip(q.split(LENGTHS_Q), k.split(LENGTHS_K), v.split(LENGTHS_K)):
        if len(queries) and len(keys):
            one = (x.transpose(0, 1)[None] for x in (queries, keys, values))
            outputs.append(pola_attention(*one, power)[0].transpose(0, 1))
        else:
            outputs.append(v.new_zeros(len(queries), HEADS, VALUES))
    return torch.cat(outputs)


def gradients(function, inputs, grad):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    return output.detach(), *torch.autograd.grad(output, leaves, grad)


@pytest.fixture(params=["sequence by sequence", "padded"])
def path(request, monkeypatch):
    """The way of the CPU, and the one of other devices on CPU tensors."""
    if request.param == "padded":
        monkeypatch.setattr(varlen, "_runs_sequence_by_sequence", lambda q: False)
    return request.param


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("longest", [None, (17, 13), (19, 29)], ids=["found", "exact", "above"])
def test_equals_one_call_a_sequence(longest):
    *inputs, grad = make_inputs()
    options = {} if longest is None else {"max_seqlen_q": longest[0], "max_seqlen_k": longest[1]}

    def packed(*x):
        return pola_attention_varlen(*x, boundaries(LENGTHS_Q), boundaries(LENGTHS_K, torch.int64), **options)

    for actual, expected in zip(gradients(packed, inputs, grad), gradients(one_call_a_sequence, inputs, grad)):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)
    output = packed(*inputs)
    assert (output[11:14] == 0).all()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_storage_dtypes(dtype):
    *inputs, grad = make_inputs(dtype)
    stored = [x.double() for x in inputs]
    limit = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    expected = gradients(one_call_a_sequence, stored, grad.double())

    def packed(*x):
        return pola_attention_varlen(*x, boundaries(LENGTHS_Q), boundaries(LENGTHS_K))

    for i, (actual, wanted) in enumerate(zip(gradients(packed, inputs, grad), expected)):
        assert actual.dtype is (dtype if i < 4 else torch.float32)
        assert (actual.double() - wanted).abs().max() <= (10 if i else 1) * limit * wanted.abs().max()


def test_equals_the_padded_call_with_masks():
    lengths = [7, 3, 11]
    q, k, v = (torch.randn(sum(lengths), HEADS, c, dtype=torch.float64) for c in (CHANNELS, CHANNELS, VALUES))
    power = torch.full((HEADS, CHANNELS), 2.5, dtype=torch.float64)
    at = boundaries(lengths)
    packed = pola_attention_varlen(q, k, v, power, at, at)
    padded = [
        torch.nn.utils.rnn.pad_sequence(list(x.split(lengths)), batch_first=True).transpose(1, 2) for x in (q, k, v)
    ]
    mask = torch.arange(11) >= torch.tensor(lengths)[:, None]
    expected = pola_attention(*padded, power, key_padding_mask=mask).transpose(1, 2)[~mask]
    torch.testing.assert_close(packed, expected, rtol=1e-12, atol=1e-12)


def test_fused_views_and_broadcast_power():
    fused = torch.randn(3, 23, HEADS, CHANNELS, dtype=torch.float64).permute(0, 1, 2, 3)
    q, k, v = torch.stack(list(fused), dim=2).unbind(2)
    at = boundaries([9, 14])
    power = torch.full((), 2.5, dtype=torch.float64, requires_grad=True)
    output = pola_attention_varlen(q, k, v, power, at, at)
    full = torch.full((HEADS, CHANNELS), 2.5, dtype=torch.float64, requires_grad=True)
    expected = pola_attention_varlen(q.contiguous(), k.contiguous(), v.contiguous(), full, at, at)
    torch.testing.assert_close(output, expected)
    (grad,) = torch.autograd.grad(output.square().sum(), power)
    (wanted,) = torch.autograd.grad(expected.square().sum(), full)
    torch.testing.assert_close(grad, wanted.sum())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # opcheck's own
def test_torch_takes_it_as_one_operator():
    *inputs, grad = make_inputs()
    at = boundaries(LENGTHS_Q), boundaries(LENGTHS_K)
    leaves = [x.requires_grad_() for x in inputs]
    torch.library.opcheck(torch.ops.polaformer.pola_attention_varlen, (*leaves, *at, None, None, 1e-6, "reference"))
    compiled = torch.compile(pola_attention_varlen, fullgraph=True, dynamic=True, backend="aot_eager")
    actual = gradients(lambda *x: compiled(*x, *at), inputs, grad)
    expected = gradients(lambda *x: pola_attention_varlen(*x, *at), inputs, grad)
    for x, y in zip(actual, expected):
        torch.testing.assert_close(x, y)
    (first,) = torch.autograd.grad(pola_attention_varlen(*leaves, *at).sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        first.sum().backward()


def test_the_named_backend_computes(monkeypatch):
    *inputs, _ = make_inputs()
    calls = []
    forward = reference.forward
    monkeypatch.setattr(reference, "forward", lambda *x: calls.append(1) or forward(*x))
    pola_attention_varlen(*inputs, boundaries(LENGTHS_Q), boundaries(LENGTHS_K), backend="reference")
    assert len(calls) == 3
    assert backends.BACKENDS[-1] == "reference"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"q": torch.ones(1, 32, 3, 5)}, "q must have 3 dimensions"),
        ({"k": torch.ones(21, 3, 4)}, r"k must have q's heads and channels, \(M, 3, 5\), got shape \(21, 3, 4\)"),
        ({"v": torch.ones(20, 3, 7)}, r"v must have k's tokens and heads, \(21, 3, E\), got shape \(20, 3, 7\)"),
        ({"power": torch.ones(2, 3, 1, 5)}, "power must have shape"),
        ({"power": -torch.ones(3, 5)}, "power must be > 0"),
        ({"eps": 0.0}, "eps must be > 0"),
        ({"backend": "cuda"}, "backend must be one of"),
        ({"cu_seqlens_q": [0, 32]}, "cu_seqlens_q must be a tensor, got list"),
        ({"cu_seqlens_q": torch.tensor([0.0, 32.0])}, "cu_seqlens_q must have dtype torch.int32 or torch.int64"),
        ({"cu_seqlens_q": torch.tensor([32])}, r"cu_seqlens_q must have shape \(sequences \+ 1,\)"),
        ({"cu_seqlens_q": torch.tensor([0, 31])}, r"rise from 0 to the number of tokens, 32, got \[0, 31\]"),
        ({"cu_seqlens_k": torch.tensor([0, 9, 5, 21])}, "cu_seqlens_k must rise from 0"),
        (
            {"cu_seqlens_k": torch.tensor([0, 9, 21])},
            "cu_seqlens_k must have as many entries as cu_seqlens_q, 7, got 3",
        ),
    ],
)
def test_wrong_arguments_are_named(changes, expected):
    q, k, v, power, _ = make_inputs(torch.float32)
    arguments = {"q": q, "k": k, "v": v, "power": power}
    arguments |= {"cu_seqlens_q": boundaries(LENGTHS_Q), "cu_seqlens_k": boundaries(LENGTHS_K), **changes}
    with pytest.raises(ValueError, match=expected):
        pola_attention_varlen(**arguments)
