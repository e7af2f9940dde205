"""What the attention layers share: projections, positions, the operator, the convolution branch and the gate."""

from typing import List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import pola_attention
from ._arguments import check_choices, check_combinations, check_sizes
from .local_mixing import DeformableDepthwise, SharedDepthwise, resize_values
from .positions import pad_to_multiple, resize_grid
from .tokens import check_tokens, map_to_tokens, tokens_to_map

# FX looks for functions to leave untraced beside a module's `forward`; these are called from here.
torch.fx.wrap("check_tokens")
torch.fx.wrap("pad_to_multiple")
torch.fx.wrap("resize_grid")

_RESIZE_MODES = {1: "linear", 2: "bicubic", 3: "trilinear"}


class Attention(nn.Module):
    """What both public layers share; `attend` is their forward pass, arguments as in `PolaAttention`."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_positions: int,
        grid_size: Tuple[int, ...],
        spatial_dims: int,
        qkv_bias: bool,
        projection: str,
        sr_ratio: int,
        kernel_size: int,
        alpha: float,
        branch: str,
        num_prefix_tokens: int,
        value_resize: str,
        proj_drop: float,
        backend: str,
        device: Optional[Union[torch.device, str]],
        dtype: Optional[torch.dtype],
    ) -> None:
        super().__init__()
        check_choices(spatial_dims, projection, branch, value_resize)
        check_sizes(dim, num_heads, sr_ratio, kernel_size, num_prefix_tokens, alpha)
        check_combinations(spatial_dims, projection, sr_ratio, branch)
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.grid_size: List[int] = list(grid_size)
        self.spatial_dims = spatial_dims
        self.sr_ratio = sr_ratio
        self.alpha = alpha
        self.branch = branch
        self.num_prefix_tokens = num_prefix_tokens
        self.value_resize = value_resize
        self.backend = backend
        self.resize_mode = _RESIZE_MODES[spatial_dims]

        self.qkvg = nn.Linear(dim, 4 * dim, qkv_bias, device, dtype) if projection == "qkvg" else None
        self.qg = nn.Linear(dim, 2 * dim, qkv_bias, device, dtype) if projection == "qg_kv" else None
        self.kv = nn.Linear(dim, 2 * dim, qkv_bias, device, dtype) if projection == "qg_kv" else None
        self.sr = nn.Conv2d(dim, dim, sr_ratio, sr_ratio, device=device, dtype=dtype) if sr_ratio > 1 else None
        self.norm = nn.LayerNorm(dim, eps=1e-5, device=device, dtype=dtype) if sr_ratio > 1 else None
        positions = torch.zeros(1, num_positions, dim, device=device, dtype=dtype) if num_positions else None
        self.positional_encoding = None if positions is None else nn.Parameter(positions)
        self.scale = nn.Parameter(torch.zeros(1, 1, dim, device=device, dtype=dtype))
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, self.head_dim, device=device, dtype=dtype))
        self.dwc = SharedDepthwise(self.head_dim, kernel_size, spatial_dims, device, dtype) if branch == "dwc" else None
        self.dcn = DeformableDepthwise(self.head_dim, kernel_size, device, dtype) if branch == "dcn" else None
        self.proj = nn.Linear(dim, dim, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, x: Tensor, size: List[int], key_padding_mask: Optional[Tensor]) -> Tensor:
        """Attend over x (B, prefix + product of size, dim); returns the same shape."""
        check_tokens(x, size, self.dim, self.spatial_dims, self.num_prefix_tokens)
        if key_padding_mask is not None and self.sr is not None:
            raise ValueError(
                f"key_padding_mask must be None with sr_ratio > 1, got a mask and sr_ratio {self.sr_ratio}"
            )
        q, k, v, gate, key_size = self._project(x, size)
        # Weights are sums of |q|^p |k|^p, so that both divisions by softplus(scale) can be one of k by its square.
        factor = F.softplus(self.scale) ** -2
        if self.positional_encoding is not None:
            positions = resize_grid(self.positional_encoding, self.grid_size, key_size, self.resize_mode)
            if self.num_prefix_tokens:
                positions = F.pad(positions, [0, 0, self.num_prefix_tokens, 0])
            k = torch.addcmul(positions * factor, k, factor)
        else:
            k = k * factor
        power = 1 + self.alpha * torch.sigmoid(self.power)
        y = pola_attention(
            self._split_heads(q),
            self._split_heads(k),
            self._split_heads(v),
            power,
            key_padding_mask=key_padding_mask,
            backend=self.backend,
        )
        y = y.transpose(1, 2).flatten(2)
        if self.dwc is not None or self.dcn is not None:
            y = y + self._mix_locally(v, size, key_size, key_padding_mask)
        return self.proj_drop(self.proj(y * gate))

    def _project(self, x: Tensor, size: List[int]) -> Tuple[Tensor, Tensor, Tensor, Tensor, List[int]]:
        """Return q, k, v, gate and the grid of the keys."""
        if self.qkvg is not None:
            q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
            return q, k, v, gate, size
        q, gate = self.qg(x).chunk(2, dim=-1)
        key_size = size
        source = x
        if self.sr is not None:
            prefix = self.num_prefix_tokens
            grid = pad_to_multiple(tokens_to_map(x[:, prefix:], size), [self.sr_ratio, self.sr_ratio])
            reduced = self.sr(grid)
            key_size = [reduced.shape[2], reduced.shape[3]]
            source = self.norm(map_to_tokens(reduced))
            if prefix > 0:
                source = torch.cat([x[:, :prefix], source], dim=1)
        k, v = self.kv(source).chunk(2, dim=-1)
        return q, k, v, gate, key_size

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, N, heads · h) -> (B, heads, N, h), a view."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mix_locally(
        self, v: Tensor, size: List[int], key_size: List[int], key_padding_mask: Optional[Tensor]
    ) -> Tensor:
        """Convolve the values over the grid; prefix tokens take no part and get 0."""
        if key_padding_mask is not None:
            v = v.masked_fill(key_padding_mask[:, :, None], 0)
        prefix = self.num_prefix_tokens
        v = v[:, prefix:]
        if self.sr is not None:
            v = resize_values(v, key_size, size, self.value_resize)
        grid = tokens_to_map(v, size)
        mixed = self.dwc(grid, self.num_heads) if self.dwc is not None else self.dcn(grid, self.num_heads)
        mixed = map_to_tokens(mixed)
        return F.pad(mixed, [0, 0, prefix, 0]) if prefix > 0 else mixed

    def extra_repr(self) -> str:
        """Name what the child modules do not show."""
        return (
            f"dim={self.dim}, num_heads={self.num_heads}, sr_ratio={self.sr_ratio}, alpha={self.alpha}, "
            f"branch={self.branch!r}, spatial_dims={self.spatial_dims}"
        )
