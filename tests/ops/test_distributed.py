"""Ranks that share the tokens get what one process gets: outputs and all gradients, in unequal parts, with masks."""

import multiprocessing
import re
import time

import pytest
import torch
from helpers.quadratic import quadratic_attention
from helpers.sharded import make_cases, run_rank

from polaformer import pola_attention

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch is built without gloo",
)


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    return request.param


@pytest.fixture(scope="module")
def results(ranks, tmp_path_factory):
    """What each rank got, by the name of the case."""
    folder = tmp_path_factory.mktemp("ranks")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=run_rank, args=(rank, ranks, folder)) for rank in range(ranks)]
    for process in processes:
        process.start()
    end = time.monotonic() + 120
    for process in processes:
        process.join(max(end - time.monotonic(), 0))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    assert codes == [0] * ranks
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


@pytest.mark.parametrize("name", make_cases(2))
def test_ranks_together_equal_the_quadratic_definition(name, ranks, results):
    case = make_cases(ranks)[name]
    q, k, v, power = (x.double().nan_to_num().requires_grad_() for x in case[:4])
    expected = quadratic_attention(q, k, v, power[:, None], case.mask)
    wanted = torch.autograd.grad(expected, (q, k, v, power), case.grad.double())

    outputs, *grads = zip(*(result[name] for result in results))
    rtol, atol = (1e-4, 1e-4) if case.q.dtype is torch.float32 else (1e-8, 1e-11)
    assert outputs[0].dtype is case.v.dtype
    torch.testing.assert_close(torch.cat(outputs, dim=2).double(), expected.detach(), rtol=rtol, atol=atol)
    for parts, whole in zip(grads[:3], wanted[:3]):
        bound = atol * whole.abs().max().item()
        torch.testing.assert_close(torch.cat(parts, dim=2).double(), whole, rtol=rtol, atol=bound)
    bound = atol * wanted[3].abs().max().item()
    torch.testing.assert_close(sum(grads[3]).double(), wanted[3], rtol=rtol, atol=bound)


def test_the_gradient_of_power_is_a_share(results):
    shares = [result["float64"][4] for result in results]
    assert all(share.abs().max() > 0 for share in shares)
    assert not torch.equal(shares[0], shares[1])


def test_groups_that_do_not_hold_this_rank_are_refused(results):
    no_group = "group must be a torch.distributed.ProcessGroup that this rank belongs to, or None, got"
    for rank, result in enumerate(results):
        messages = [f"{no_group} str", "backend must be 'auto' or 'tiled' with a group, got 'reference'"]
        assert result["errors"] == messages + [f"{no_group} int"] * (rank > 0)


def test_a_group_before_torch_distributed_is_initialised_is_refused():
    q = torch.ones(2, 3, 7, 5)
    with pytest.raises(ValueError, match=re.escape("group must be None while torch.distributed is not initialised")):
        pola_attention(q, q, q, torch.ones(3, 5), group=object())  # pyright: ignore[reportArgumentType]
