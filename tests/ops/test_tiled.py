"""What only the backend of PyTorch calls on tiles promises: any tiling, any number of threads, little memory."""

import pytest
import torch
from helpers.memory import PeakMemory
from helpers.quadratic import quadratic_attention

from polaformer.ops import tiled, tiles


def make_case(batch, heads, queries, keys, channels, values, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v, grad = (
        torch.randn(batch, heads, n, c, generator=generator, dtype=torch.float64).to(dtype)
        for n, c in ((queries, channels), (keys, channels), (keys, values), (queries, values))
    )
    power = 1 + 4 * torch.rand(heads, channels, generator=generator, dtype=torch.float64).to(dtype)
    return q, k, v, power, grad


def outcome(q, k, v, power, grad, mask=None):
    return tiled.forward(q, k, v, power, mask, 1e-6), *tiled.backward(grad, q, k, v, power, mask, 1e-6)


@pytest.mark.parametrize("elements", [1, 29, 97, 193, 401, 1201])
@pytest.mark.parametrize("masked", [False, True])
def test_any_tile_gives_the_quadratic_definition(elements, masked, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", elements)
    q, k, v, power, grad = make_case(3, 5, 11, 13, 7, 6)
    mask = None
    if masked:
        mask = torch.rand(3, 13, generator=torch.Generator().manual_seed(1)) < 0.4
        v[mask[:, None].expand(3, 5, 13)] = torch.nan
    q[:, :, 4], k[..., 3] = 0, 0
    output, *grads = outcome(q, k, v, power, grad, mask)
    leaves = [x.clone().requires_grad_() for x in (q, k, v.nan_to_num(), power)]
    expected = quadratic_attention(leaves[0], leaves[1], leaves[2], leaves[3][:, None], mask)
    torch.testing.assert_close(output, expected.detach(), rtol=1e-9, atol=1e-12)
    for actual, wanted in zip(grads, torch.autograd.grad(expected, leaves, grad)):
        torch.testing.assert_close(actual, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("batch", "heads", "elements"), [(3, 5, 7), (3, 5, 29), (4, 5, 97), (1, 7, 1000), (2, 1, 1)])
def test_groups_hold_every_head_once(batch, heads, elements, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 100)
    seen = torch.zeros(batch, heads)
    for group in tiles.head_groups(batch, heads, elements):
        seen[group] += 1
        assert seen[group].numel() * elements <= max(100, elements)
        seen[group].view(-1)  # one dimension without a copy
    assert (seen == 1).all()


# Odd sizes end a thread's part within a vector; 5003 tokens make several tiles.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 12503, 9001, 31, 37), (3, 5, 2049, 2049, 7, 3), (41, 3, 49, 51, 33, 31), (1, 2, 83003, 301, 3, 1)]
)
def test_result_does_not_depend_on_the_number_of_threads(sizes, dtype):
    case = make_case(*sizes, dtype=dtype)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = outcome(*case)
        torch.set_num_threads(2)
        double = outcome(*case)
    finally:
        torch.set_num_threads(threads)
    for name, one, two in zip(("output", "q", "k", "v", "power"), single, double):
        assert torch.equal(one, two), name


def held_beyond_results(tokens, dtype):
    fused = torch.randn(1, tokens, 3, 2, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    q, k, v = fused.permute(2, 0, 3, 1, 4)
    power, mask = torch.full((2, 5), 2.5), torch.zeros(1, tokens, dtype=torch.bool)
    grad = q.clone()
    with PeakMemory() as peak:
        results = outcome(q, k, v, power, grad, mask)
    return peak.bytes - sum(x.untyped_storage().nbytes() for x in (fused, mask, grad, *results))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_the_tokens_even_of_a_fused_projection(dtype, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 1000)
    few, many = (held_beyond_results(tokens, dtype) for tokens in (2003, 8009))
    # A copy of one of q, k and v alone would be 160,180 bytes or more.
    assert many <= 1.1 * few < 70_000
