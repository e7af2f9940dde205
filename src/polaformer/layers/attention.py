"""The attention layer: projections, positions, the operator, the convolution branch and the gate."""

import math
import warnings
from typing import List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import pola_attention
from .local_mixing import DeformableDepthwise, SharedDepthwise, resize_values
from .positions import pad_to_multiple, resize_grid
from .tokens import check_token_count, map_to_tokens, tokens_to_map

_RESIZE_MODES = {1: "linear", 2: "bicubic", 3: "trilinear"}


class _Attention(nn.Module):
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
        _check_choices(dim, num_heads, spatial_dims, projection, sr_ratio, kernel_size, branch, value_resize)
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
        check_token_count(x, size, self.num_prefix_tokens)
        if key_padding_mask is not None and self.sr is not None:
            raise ValueError(
                f"key_padding_mask must be None with sr_ratio > 1, got a mask and sr_ratio {self.sr_ratio}"
            )
        q, k, v, gate, key_size = self._project(x, size)
        if self.positional_encoding is not None:
            positions = resize_grid(self.positional_encoding, self.grid_size, key_size, self.resize_mode)
            k = k + F.pad(positions, [0, 0, self.num_prefix_tokens, 0]) if self.num_prefix_tokens else k + positions
        scale = F.softplus(self.scale)
        power = 1 + self.alpha * torch.sigmoid(self.power)
        y = pola_attention(
            self._split_heads(q / scale),
            self._split_heads(k / scale),
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


class PolaAttention(_Attention):
    """Polarity-aware linear self-attention over tokens on a line, a map or a volume.

        y = proj((operator(q / s, k / s, v, p) + conv(v)) ⊙ g),   s = softplus(scale),   p = 1 + alpha · sigmoid(power)

    with q, k, v and the gate g projected from x and a positional encoding added to k.

    Args:
        dim: Channels of x; num_heads must divide it.
        num_heads: Attention heads.
        spatial_dims: Axes of the token grid: 1 (sequence), 2 (map), 3 (volume).
        grid_size: Grid of the positional encoding, one extent an axis (after reduction by sr_ratio); it is resized to the
            grid of the keys where that differs. None: no positional encoding.
        qkv_bias: Biases in the projections of q, k, v and g.
        projection: 'qg_kv', two linear layers (as in the pyramid models), or 'qkvg', one (as in the window models).
        sr_ratio: Keys and values come from the map reduced by this factor with a strided convolution and a LayerNorm
            (2-D, 'qg_kv' only); maps that it does not divide are padded with zeros at the bottom and right.
        kernel_size: Odd side of the convolution's kernel, in tokens.
        alpha: The exponents lie between 1 and 1 + alpha.
        branch: Convolution of the values added to the attention: 'dwc' (depthwise), 'dcn' (deformable, 2-D), 'none'.
        num_prefix_tokens: Tokens before the grid's (class, registers): they attend and are attended to, without position
            and outside the convolution.
        value_resize: How reduced values return to the queries' map: 'sequence', linear along the flattened sequence (as
            published), or 'map', bilinear on the map. No effect at sr_ratio 1.
        proj_drop: Dropout after the output projection.
        backend: Implementation of the operator, see `polaformer.pola_attention`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: an argument is none of its choices, or two do not go together.

    Source: PolaFormer, ICLR 2025 (arXiv 2501.15061), section 4.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        spatial_dims: int = 2,
        grid_size: Optional[Tuple[int, ...]] = None,
        qkv_bias: bool = True,
        projection: str = "qg_kv",
        sr_ratio: int = 1,
        kernel_size: int = 5,
        alpha: float = 4.0,
        branch: str = "dwc",
        num_prefix_tokens: int = 0,
        value_resize: str = "sequence",
        proj_drop: float = 0.0,
        backend: str = "auto",
        device: Optional[Union[torch.device, str]] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        if grid_size is not None and len(grid_size) != spatial_dims:
            raise ValueError(f"grid_size must have one extent for each of {spatial_dims} axes, got {grid_size}")
        super().__init__(
            dim=dim,
            num_heads=num_heads,
            num_positions=math.prod(grid_size) if grid_size is not None else 0,
            grid_size=grid_size or (),
            spatial_dims=spatial_dims,
            qkv_bias=qkv_bias,
            projection=projection,
            sr_ratio=sr_ratio,
            kernel_size=kernel_size,
            alpha=alpha,
            branch=branch,
            num_prefix_tokens=num_prefix_tokens,
            value_resize=value_resize,
            proj_drop=proj_drop,
            backend=backend,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor, size: List[int], key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """Attend.

        Args:
            x: Tokens, (B, num_prefix_tokens + product of size, dim), the last axis of the grid running fastest.
            size: Extent of the token grid on each axis, e.g. [H, W].
            key_padding_mask: (B, tokens) bool, True = padding: neither attended to nor seen by the convolution. At
                sr_ratio 1 only.

        Returns:
            (B, tokens, dim); what stands at padded tokens means nothing.

        Raises:
            ValueError: size does not hold x's tokens; a mask comes with sr_ratio > 1.
        """
        return self.attend(x, size, key_padding_mask)


class PolaLinearAttention(_Attention):
    """The published layer: its constructor, parameter names and call, on maps of any height and width.

    Args:
        dim: Channels of x; num_heads must divide it.
        num_patches: Tokens of the training map; num_patches // sr_ratio² positions are learned, for a square map unless
            grid_size says otherwise.
        num_heads: Attention heads.
        qkv_bias: Biases in qg and kv.
        qk_scale: Has no effect (there is no softmax to scale).
        attn_drop: Has no effect (there is no attention matrix to drop from).
        proj_drop: Dropout after the output projection.
        sr_ratio: Keys and values come from the map reduced by this factor.
        kernel_size: Odd side of the depthwise convolution's kernel, in tokens.
        alpha: The exponents lie between 1 and 1 + alpha.
        grid_size: (rows, columns) of the positional encoding, after reduction by sr_ratio. Without it a map with as many
            keys as there are positions takes the encoding as it is, whatever its shape.
        branch: As in `PolaAttention`.
        value_resize: As in `PolaAttention`.
        backend: As in `PolaAttention`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: an argument is none of its choices, or two do not go together.

    Source: PolaFormer, ICLR 2025 (arXiv 2501.15061), section 4; weights of the published layer load with
        `load_state_dict`.
    """

    def __init__(
        self,
        dim: int,
        num_patches: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_scale: Optional[float] = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        sr_ratio: int = 1,
        kernel_size: int = 5,
        alpha: float = 4,
        *,
        grid_size: Optional[Tuple[int, int]] = None,
        branch: str = "dwc",
        value_resize: str = "sequence",
        backend: str = "auto",
        device: Optional[Union[torch.device, str]] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        for name, value, default in (("qk_scale", qk_scale, None), ("attn_drop", attn_drop, 0.0)):
            if value != default:
                warnings.warn(f"{name} has no effect in linear attention, got {value}", UserWarning, stacklevel=2)
        if num_patches < sr_ratio**2:
            raise ValueError(f"num_patches must be at least sr_ratio² = {sr_ratio**2}, got {num_patches}")
        num_positions = num_patches // sr_ratio**2
        if grid_size is not None and math.prod(grid_size) != num_positions:
            raise ValueError(
                f"grid_size must hold num_patches // sr_ratio² = {num_positions} positions, got {grid_size}"
            )
        super().__init__(
            dim=dim,
            num_heads=num_heads,
            num_positions=num_positions,
            grid_size=grid_size or (),
            spatial_dims=2,
            qkv_bias=qkv_bias,
            projection="qg_kv",
            sr_ratio=sr_ratio,
            kernel_size=kernel_size,
            alpha=alpha,
            branch=branch,
            num_prefix_tokens=0,
            value_resize=value_resize,
            proj_drop=proj_drop,
            backend=backend,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor, H: int, W: int, key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """Attend over the tokens of an H×W map.

        Args:
            x: (B, H · W, dim), rows first.
            H: Rows.
            W: Columns.
            key_padding_mask: As in `PolaAttention`.

        Returns:
            (B, H · W, dim).

        Raises:
            ValueError: H · W is not x's number of tokens; a mask comes with sr_ratio > 1.
        """
        return self.attend(x, [H, W], key_padding_mask)


def _check_choices(
    dim: int,
    num_heads: int,
    spatial_dims: int,
    projection: str,
    sr_ratio: int,
    kernel_size: int,
    branch: str,
    value_resize: str,
) -> None:
    if num_heads < 1 or dim % num_heads != 0:
        raise ValueError(f"num_heads must divide dim = {dim}, got {num_heads}")
    for name, value, choices in (
        ("spatial_dims", spatial_dims, (1, 2, 3)),
        ("projection", projection, ("qg_kv", "qkvg")),
        ("branch", branch, ("dwc", "dcn", "none")),
        ("value_resize", value_resize, ("sequence", "map")),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd and positive, got {kernel_size}")
    if sr_ratio < 1:
        raise ValueError(f"sr_ratio must be at least 1, got {sr_ratio}")
    if sr_ratio > 1 and (spatial_dims != 2 or projection != "qg_kv"):
        raise ValueError(f"sr_ratio must be 1 unless spatial_dims is 2 and projection is 'qg_kv', got {sr_ratio}")
    if branch == "dcn" and spatial_dims != 2:
        raise ValueError(f"branch must be 'dwc' or 'none' unless spatial_dims is 2, got {branch!r}")
