"""The convolution branch against torch's own convolutions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polaformer.layers.local_mixing import DeformableDepthwise, SharedDepthwise, resize_values


@pytest.mark.parametrize(("dims", "size"), [(1, (23,)), (2, (5, 7)), (3, (3, 5, 7))])
def test_every_head_has_the_same_kernels(dims, size):
    branch = SharedDepthwise(4, 3, dims)
    plain = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims](4, 4, 3, padding=1, groups=4)
    plain.load_state_dict(branch.state_dict())
    x = torch.randn(2, 12, *size)
    heads = [plain(x[:, 4 * i : 4 * i + 4]) for i in range(3)]
    torch.testing.assert_close(branch(x, 3), torch.cat(heads, dim=1))


def test_deformable_offsets_shift_the_sampling():
    branch = DeformableDepthwise(2, 1)
    branch.offset.bias.data = torch.tensor([1.0, 0.0])  # rows, then columns: sample one row below
    x = torch.randn(3, 4, 5, 7)
    below = F.pad(x, (0, 0, 0, 1))[:, :, 1:]
    weight, bias = branch.weight.flatten().repeat(2), branch.bias.repeat(2)
    torch.testing.assert_close(branch(x, 2), below * weight[:, None, None] + bias[:, None, None])


def test_published_resize_runs_along_the_sequence():
    v = torch.randn(2, 6, 3)
    expected = F.interpolate(v.transpose(1, 2), 35, mode="linear").transpose(1, 2)
    assert torch.equal(resize_values(v, [2, 3], [5, 7], "sequence"), expected)
