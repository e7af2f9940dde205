"""The convolution beside the attention: each value channel mixed with its neighbours on the grid.

One kernel a head channel, shared by all heads. Linear attention maps have low rank; this branch gives the rank back.
"""

from typing import List, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class SharedDepthwise(nn.Module):
    """A depthwise convolution ('same' zero padding) with one kernel a head channel, shared by all heads.

    Args:
        head_dim: Channels a head.
        kernel_size: Odd side of the kernel, in tokens.
        spatial_dims: Axes of the token grid, 1, 2 or 3.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        head_dim: int,
        kernel_size: int,
        spatial_dims: int = 2,
        device: Optional[Union[torch.device, str]] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        initial = _CONVOLUTIONS[spatial_dims](
            head_dim, head_dim, kernel_size, groups=head_dim, device=device, dtype=dtype
        )
        self.weight = initial.weight  # (head_dim, 1, kernel, ...)
        self.bias = initial.bias
        self.spatial_dims = spatial_dims
        self.head_dim = head_dim
        self.padding = kernel_size // 2

    def forward(self, x: Tensor, num_heads: int) -> Tensor:
        """Mix a map (B, heads · head_dim, *size) into the same shape."""
        # Repeating the small kernel keeps the map in one piece; moving the heads into the batch would copy the map twice.
        weight, bias = torch.cat([self.weight] * num_heads), torch.cat([self.bias] * num_heads)
        channels = num_heads * self.head_dim
        if self.spatial_dims == 1:
            return F.conv1d(x, weight, bias, padding=self.padding, groups=channels)
        if self.spatial_dims == 2:
            return F.conv2d(x, weight, bias, padding=self.padding, groups=channels)
        return F.conv3d(x, weight, bias, padding=self.padding, groups=channels)


class DeformableDepthwise(nn.Module):
    """A shared depthwise 2-D convolution that samples at learned offsets, equal to the plain one until they move.

    Args:
        head_dim: Channels a head.
        kernel_size: Odd side of the kernel, in tokens.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Source: deformable convolution, `torchvision.ops.deform_conv2d`; the published layer offers one as 'dcn'.
    """

    def __init__(
        self,
        head_dim: int,
        kernel_size: int,
        device: Optional[Union[torch.device, str]] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        initial = nn.Conv2d(head_dim, head_dim, kernel_size, groups=head_dim, device=device, dtype=dtype)
        self.weight = initial.weight
        self.bias = initial.bias
        self.head_dim = head_dim
        self.padding = kernel_size // 2
        self.offset = nn.Conv2d(
            head_dim, 2 * kernel_size**2, kernel_size, padding=self.padding, device=device, dtype=dtype
        )
        for parameter in self.offset.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor, num_heads: int) -> Tensor:
        """Mix a map (B, heads · head_dim, H, W) into the same shape."""
        batch = x.shape[0]
        heads = x.unflatten(1, (num_heads, self.head_dim)).flatten(0, 1)  # every head has its own offsets
        # Under autocast the offsets come in half precision; sampling positions need float32 beyond a few hundred tokens.
        mixed = deform_conv2d(
            heads.to(self.weight.dtype),
            self.offset(heads).to(self.weight.dtype),
            self.weight,
            self.bias,
            padding=(self.padding, self.padding),
        )
        return mixed.to(x.dtype).unflatten(0, (batch, num_heads)).flatten(1, 2)


def resize_values(v: Tensor, key_size: List[int], size: List[int], mode: str) -> Tensor:
    """Bring the values of reduced keys back to the map of the queries.

    Args:
        v: (B, product of key_size, C).
        key_size: Map of the keys (rows, columns).
        size: Map of the queries (rows, columns).
        mode: 'sequence', linear along the flattened sequence (as published), or 'map', bilinear on the map.

    Returns:
        (B, product of size, C).
    """
    channels_first = v.transpose(1, 2)
    if mode == "sequence":
        return F.interpolate(channels_first, size=size[0] * size[1], mode="linear").transpose(1, 2)
    resized = F.interpolate(channels_first.unflatten(2, key_size), size=size, mode="bilinear")
    return resized.flatten(2).transpose(1, 2)
