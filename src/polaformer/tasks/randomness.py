"""Randomness of a training step as a function of its place in the run."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_generators(seed: int, *place: int) -> None:
    """Seed Python's, NumPy's and torch's global generators from a seed and a place in the run.

    Called before every training step with (epoch, batch, rank): dropout, stochastic depth and mixup then depend on
    where the step stands and on nothing that happened before. A resumed run draws what the uninterrupted one would
    have drawn, and a step can be repeated to see what went wrong.

    Args:
        seed: seed of the run.
        place: non-negative integers, e.g. epoch, batch and rank; none for the start of the run.
    """
    words = np.random.SeedSequence([seed, *place]).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]) << 32 | int(words[3]))
