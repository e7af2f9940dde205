"""A wrong argument gets one line that names it, what it must be and what it was."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from polaformer import pola_attention


def arguments(**changes: Any) -> dict[str, Any]:
    values = {
        "q": torch.ones(2, 3, 7, 5),
        "k": torch.ones(2, 3, 11, 5),
        "v": torch.ones(2, 3, 11, 4),
        "power": torch.full((3, 5), 2.0),
    }
    return values | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.ones(3, 7, 5)}, "q must have 4 dimensions (batch, heads, tokens, channels), got shape (3, 7, 5)"),
        ({"k": torch.ones(11, 5)}, "k must have 4 dimensions"),
        ({"v": torch.ones(2, 3, 11, 4, 1)}, "v must have 4 dimensions"),
        ({"k": torch.ones(2, 3, 11, 6)}, "k must have q's batch, heads and channels, (2, 3, M, 5), got shape (2, 3, 11, 6)"),
        ({"k": torch.ones(2, 2, 11, 5)}, "k must have q's batch, heads and channels"),
        ({"v": torch.ones(2, 3, 13, 4)}, "v must have k's batch, heads and tokens, (2, 3, 11, E), got shape (2, 3, 13, 4)"),
        ({"v": torch.ones(2, 3, 11, 0)}, "v must have at least one element in every dimension, got shape (2, 3, 11, 0)"),
        ({"k": torch.ones(2, 3, 0, 5), "v": torch.ones(2, 3, 0, 4)}, "k must have at least one element"),
        ({"q": torch.ones(2, 3, 7, 5, dtype=torch.int64)}, "q must have a floating-point dtype, got torch.int64"),
        ({"power": torch.ones(5, 3)}, "power must have shape (heads, channels) = (3, 5) or broadcast to (2, 3, 1, 5), got (5, 3)"),
        ({"power": torch.ones(2, 3, 7, 5)}, "power must have shape"),
        ({"power": torch.tensor([[1.0, 2.0, 3.0, -0.5, 1.0]])}, "power must be > 0 everywhere, got a minimum of -0.5"),
        ({"power": torch.full((3, 5), float("nan"))}, "power must be > 0 everywhere, got a minimum of nan"),
        ({"power": torch.zeros(3, 5)}, "power must be > 0 everywhere"),
        ({"q": torch.ones(2, 3, 7, 5).to_sparse()}, "q must be a dense tensor (layout torch.strided), got torch.sparse_coo"),
        ({"eps": 0.0}, "eps must be > 0, got 0.0"),
        ({"backend": "cuda"}, "backend must be one of auto, native, triton, tiled, reference, got 'cuda'"),
        ({"key_padding_mask": torch.zeros(2, 7, dtype=torch.bool)}, "key_padding_mask must have shape (batch, keys) = (2, 11), got (2, 7)"),
        ({"key_padding_mask": torch.zeros(2, 11)}, "key_padding_mask must have dtype torch.bool (True = ignore this key), got torch.float32"),
        ({"q": np.ones((2, 3, 7, 5))}, "q must be a tensor, got ndarray"),
        ({"k": None}, "k must be a tensor, got NoneType"),
        ({"v": [[1.0]]}, "v must be a tensor, got list"),
        ({"power": 3.0}, "power must be a tensor, got float"),
        ({"key_padding_mask": False}, "key_padding_mask must be a tensor or None, got bool"),
        ({"v": torch.ones(2, 3, 11, 4, device="meta")}, "v must be on the device of q, cpu, got meta"),
    ],
)  # fmt: skip
def test_wrong_argument(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pola_attention(**arguments(**changes))


@pytest.mark.parametrize("shape", [(7, 11), (2, 7, 11), (2, 1, 7, 11)])
def test_pairwise_mask_names_what_is_supported_instead(shape):
    with pytest.raises(
        ValueError, match="does not exist in linear attention, instead mask padded keys or call the operator window"
    ):
        pola_attention(**arguments(key_padding_mask=torch.zeros(shape, dtype=torch.bool)))


def test_checks_hold_on_meta_tensors_too():
    with pytest.raises(ValueError, match="k must have q's batch"):
        pola_attention(**{name: x.to("meta") for name, x in arguments(k=torch.ones(2, 3, 11, 6)).items()})
