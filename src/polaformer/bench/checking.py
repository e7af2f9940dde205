"""Whether a way to attend computes what it should, before anyone times it."""

from __future__ import annotations

import torch
from torch import Tensor

from .contenders import Attend, Contender

BOUNDS = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest error of the operator's output, relative to the largest value; ten times that for the gradients."""

SAMPLES = 61
"""Queries that are compared: with the gradient of only these outputs, float64 costs little, whatever the tokens."""


class CheckFailure(ValueError):
    """A way to attend that is off by more than it may be."""


def check(contender: Contender, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    """Compare output and gradients with float64 on the same stored inputs.

    Args:
        contender: what to check.
        inputs: q, k, v (B, H, N, D) and power (H, D), the first three of one dtype.

    Returns:
        The largest relative error of the output.

    Raises:
        CheckFailure: an error is above its bound, or not a number.
    """
    q, k, v, power = inputs
    rows = torch.linspace(0, q.shape[2] - 1, min(SAMPLES, q.shape[2]), device=q.device).long()
    generator = torch.Generator().manual_seed(1)
    shape = (*q.shape[:2], len(rows), v.shape[-1])
    grad = torch.randn(shape, generator=generator, dtype=torch.float64).to(q.device, q.dtype)
    of_all = torch.zeros(q.shape[:3] + v.shape[-1:], dtype=q.dtype, device=q.device)
    of_all[:, :, rows] = grad
    actual = _with_gradients(contender.attend, inputs, of_all)
    actual[0], actual[1] = actual[0][:, :, rows], actual[1][:, :, rows]
    stored = (q[:, :, rows].double(), k.double(), v.double(), power.double())
    expected = _with_gradients(contender.exact, stored, grad.double())
    bound = contender.slack * BOUNDS[q.dtype]
    errors = [_error(x, wanted) for x, wanted in zip(actual, expected)]
    names = ("output", "gradient of q", "gradient of k", "gradient of v", "gradient of the exponents")
    for name, error, limit in zip(names, errors, [bound, *[10 * bound] * 4]):
        if not error <= limit:  # false for NaN
            raise CheckFailure(
                f"{contender.name} must agree with float64 before it is timed: its {name} is off by {error:.1e} "
                f"(at most {limit:.0e}) at {q.shape[2]} tokens in {str(q.dtype).removeprefix('torch.')}"
            )
    return errors[0]


def _with_gradients(attend: Attend, inputs: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    q, k, v, power = leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = attend(q, k, v, power)
    grads = torch.autograd.grad(output, leaves, grad, allow_unused=True, materialize_grads=True)
    return [output.detach(), *grads]


def _error(actual: Tensor, expected: Tensor) -> float:
    largest = expected.abs().max().item()
    return (actual.double() - expected).abs().max().item() / (largest or 1.0)
