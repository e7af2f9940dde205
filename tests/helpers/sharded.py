"""One rank's part in the tests of attention over a process group, in a module that a spawned process can import."""

from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from polaformer import pola_attention

# Tokens of each rank, for two ranks and for three.
QUERIES = {2: (10, 1), 3: (3, 7, 1)}
KEYS = {2: (5, 24), 3: (1, 11, 17)}


class Case(NamedTuple):
    """Inputs of all ranks together."""

    q: Tensor
    k: Tensor
    v: Tensor
    power: Tensor
    grad: Tensor
    mask: Tensor | None


def make_cases(ranks: int) -> dict[str, Case]:
    """Return the cases by name, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = sum(QUERIES[ranks]), sum(KEYS[ranks])
    q, k, v, grad = (
        torch.randn(2, 3, n, c, generator=generator, dtype=torch.float64)
        for n, c in ((queries, 5), (keys, 5), (keys, 7), (queries, 7))
    )
    power = 1 + 4 * torch.rand(3, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, keys, generator=generator) < 0.4
    mask[:, 0] = False
    without_last_rank, without_entry = mask.clone(), mask.clone()
    without_last_rank[:, -KEYS[ranks][-1] :] = True
    without_entry[1] = True
    growing = k * torch.arange(1, keys + 1)[:, None]
    hidden = v.masked_fill(without_last_rank[:, None, :, None], torch.nan)
    single = Case(q.float(), k.float(), v.float(), power.float(), grad.float(), None)
    return {
        "float64": Case(q, k, v, power, grad, None),
        "float32": single,
        "float32, masked": single._replace(mask=mask),
        "masked": Case(q, k, v, power, grad, mask),
        "no valid key on the last rank": Case(q, k, hidden, power, grad, without_last_rank),
        "no valid key in an entry": Case(q, k, v, power, grad, without_entry),
        "largest keys on the last rank": Case(1e3 * q, 1e3 * growing, v, power, grad, None),
        "one power": Case(q, k, v, power[:1, :1], grad, None),
    }


def run_rank(rank: int, ranks: int, folder: Path) -> None:
    """Run all cases as one rank and save its results."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", rendezvous, timedelta(seconds=60), world_size=ranks, rank=rank)
    group = dist.group.WORLD
    results: dict[str, Any] = {name: _outcome(case, rank, ranks, group) for name, case in make_cases(ranks).items()}
    results["errors"] = _errors(make_cases(ranks)["float64"], dist.new_group([0]), rank)
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


def _outcome(case: Case, rank: int, ranks: int, group: dist.ProcessGroup | None) -> tuple[Tensor, ...]:
    q, grad = (x.split(QUERIES[ranks], dim=2)[rank] for x in (case.q, case.grad))
    k, v = (x.split(KEYS[ranks], dim=2)[rank] for x in (case.k, case.v))
    mask = None if case.mask is None else case.mask.split(KEYS[ranks], dim=1)[rank]
    leaves = [x.clone().requires_grad_() for x in (q, k, v, case.power)]
    with torch.autocast("cpu", torch.bfloat16):  # which must not change anything
        output = pola_attention(*leaves, key_padding_mask=mask, group=group)
    return output.detach(), *torch.autograd.grad(output, leaves, grad)


def _errors(case: Case, first_alone: Any, rank: int) -> list[str]:
    attempts: list[dict[str, Any]] = [{"group": "all"}, {"group": dist.group.WORLD, "backend": "reference"}]
    if rank > 0:
        attempts.append({"group": first_alone})
    messages = []
    for options in attempts:
        try:
            pola_attention(case.q, case.k, case.v, case.power, **options)
        except ValueError as error:
            messages.append(str(error))
    return messages
