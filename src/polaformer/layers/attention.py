"""The attention layers: the general one, and the published one with its constructor and call."""

import math
import warnings
from typing import List, Optional, Tuple, Union

import torch
from torch import Tensor

from ._arguments import check_grid_size, check_whole
from ._attention import Attention


class PolaAttention(Attention):
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
        check_grid_size(grid_size, spatial_dims)
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
            ValueError: x is no (B, tokens, dim); size is no list of one extent an axis, or does not hold x's tokens; a mask
                comes with sr_ratio > 1.
        """
        return self.attend(x, size, key_padding_mask)


class PolaLinearAttention(Attention):
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
        check_whole("num_patches", num_patches, 1)
        check_whole("sr_ratio", sr_ratio, 1)
        check_grid_size(grid_size, 2)
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
            ValueError: x is no (B, tokens, dim); H · W is not its number of tokens; a mask comes with sr_ratio > 1.
        """
        return self.attend(x, [H, W], key_padding_mask)
