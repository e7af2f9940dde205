"""PolaFormer in the columnar layout of DeiT: one resolution, no class token, polarity-aware linear attention in every block.

Papers: PolaFormer, ICLR 2025 (https://arxiv.org/abs/2501.15061); DeiT, ICML 2021 (https://arxiv.org/abs/2012.12877).

No code or weights were released for this family: it follows the paper's table (patch 16, mean pooling). Positions enter once, by a
learned embedding of the patches; the blocks' own positional encodings are left out, which gives the published parameter count.

Letters: B batch, C channels, H × W map of patches, N = H·W tokens.
"""

from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from timm.layers import calculate_drop_path_rates, trunc_normal_
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from ..layers import PolaAttention
from ..layers.positions import resize_grid
from ..layers.tokens import tokens_to_map
from ._backbone import Backbone, PatchEmbed, TokenBlock, init_weights, take_indices
from ._registration import build_backbone, default_cfg
from ._tables import Grid


class PolaDeiT(Backbone):
    """Stack of equal blocks over 16 × 16 px patches.

    Args:
        img_size: Size in pixels the position embedding is built for, side or (height, width). Other sizes run too.
        in_chans: Image channels.
        num_classes: Classes; 0 = no classifier.
        global_pool: 'avg', or '' for unpooled output.
        patch_size: Side of a patch in pixels.
        embed_dim: Channels.
        depth: Blocks.
        num_heads: Heads.
        mlp_ratio: Width of the MLP's hidden layer over its input's.
        alpha: Largest exponent of the linear attention less 1.
        kernel_size: Side of the depthwise convolution in linear attention, odd.
        qkv_bias: Biases of queries, gate, keys and values.
        drop_rate: Dropout before the classifier.
        proj_drop_rate: Dropout after each projection of attention and MLP.
        drop_path_rate: Stochastic depth of the last block; rises linearly from 0 in the first.

    Raises:
        ValueError: an argument has a wrong value.

    Source: the DeiT models of PolaFormer (arXiv 2501.15061), table 1.
    """

    out_indices = 3  # the last three blocks

    def __init__(
        self,
        img_size: Union[int, Tuple[int, int]] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        patch_size: int = 16,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        mlp_ratio: float = 4.0,
        alpha: float = 4.0,
        kernel_size: int = 5,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__(img_size, in_chans, num_classes, global_pool)
        dd = {"device": device, "dtype": dtype}
        self.patch_size = patch_size
        self.pos_grid = self._grid(self.img_size)
        self.patch_embed = PatchEmbed(in_chans, embed_dim, patch_size, norm=False, **dd)
        self.pos_embed = nn.Parameter(torch.empty(1, self.pos_grid[0] * self.pos_grid[1], embed_dim, **dd))
        shared = {"qkv_bias": qkv_bias, "alpha": alpha, "kernel_size": kernel_size, "proj_drop": proj_drop_rate, **dd}
        drop_paths: Any = calculate_drop_path_rates(drop_path_rate, depth)
        self.blocks = nn.ModuleList(
            TokenBlock(PolaAttention(embed_dim, num_heads, **shared), embed_dim, mlp_ratio, proj_drop_rate, rate, **dd)
            for rate in drop_paths
        )
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6, **dd)
        self.feature_info = [
            {"num_chs": embed_dim, "reduction": patch_size, "module": f"blocks.{i}"} for i in range(depth)
        ]
        trunc_normal_(self.pos_embed, std=0.02)
        self.apply(init_weights)
        self._add_head(embed_dim, drop_rate, **dd)

    def _grid(self, img_size: Tuple[int, int]) -> List[int]:
        return [-(-img_size[0] // self.patch_size), -(-img_size[1] // self.patch_size)]

    def table_grids(self, img_size: Tuple[int, int]) -> Dict[str, Grid]:
        """Return the grid of the position embedding if this model was built for `img_size`."""
        rows, columns = self._grid(img_size)
        return {"pos_embed": (rows, columns)}

    def _record_grids(self, grids: Dict[str, Grid]) -> None:
        self.pos_grid = list(grids["pos_embed"])

    def group_matcher(self, coarse: bool = False) -> Dict[str, Any]:
        """Return patterns that sort the parameters into layers, for layer-wise learning rates."""
        return {"stem": r"^(?:patch_embed|pos_embed)", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    def _embed(self, x: Tensor) -> Tuple[Tensor, List[int]]:
        x = self.patch_embed(x)
        size = [x.shape[1], x.shape[2]]
        return x.flatten(1, 2) + resize_grid(self.pos_embed, self.pos_grid, size, "bicubic"), size

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map (B, embed_dim, ⌈H/16⌉, ⌈W/16⌉) of images x (B, in_chans, H, W)."""
        x, size = self._embed(x)
        for block in self.blocks:
            x = block(x, size)
        return tokens_to_map(self.norm(x), size)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images x (B, in_chans, H, W)."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Optional[Union[int, List[int]]] = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Union[List[Tensor], Tuple[Tensor, List[Tensor]]]:
        """Return the maps (B, C, H, W) of blocks `indices`, ascending; an int n: the last n, None: all. As timm defines it.

        `norm` applies the final norm to each map. Without `intermediates_only` the result is (features, maps).
        """
        assert output_fmt == "NCHW", "output_fmt must be 'NCHW'"
        taken, last = take_indices(len(self.blocks), indices)
        x, size = self._embed(x)
        intermediates: List[Tensor] = []
        for i, block in enumerate(self.blocks):
            if i <= last or not stop_early:
                x = block(x, size)
            if i in taken:
                intermediates.append(tokens_to_map(self.norm(x) if norm else x, size))
        if intermediates_only:
            return intermediates
        return tokens_to_map(self.norm(x), size), intermediates

    def prune_intermediate_layers(
        self, indices: Union[int, List[int]] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> List[int]:
        """Remove what the maps at `indices` do not need; returns the indices counted from 0."""
        taken, last = take_indices(len(self.blocks), indices)
        self.pruned += [f"blocks.{i}." for i in range(last + 1, len(self.blocks))]
        self.blocks = self.blocks[: last + 1]
        # All blocks have the same width, so norm and head still fit after a cut and go only when asked.
        self._finish_pruning(None, prune_norm, prune_head)
        return taken


default_cfgs = generate_default_cfgs(
    {
        "pola_deit_tiny.in1k": default_cfg("patch_embed.proj", stride=16),
        "pola_deit_small.in1k": default_cfg("patch_embed.proj", stride=16),
    }
)


@register_model
def pola_deit_tiny(pretrained: bool = False, **kwargs: Any) -> PolaDeiT:
    """PolaFormer-DeiT-T, 6.2 M parameters."""
    return build_backbone(
        PolaDeiT, "pola_deit_tiny", pretrained, {"embed_dim": 192, "num_heads": 3, "drop_path_rate": 0.1}, **kwargs
    )


@register_model
def pola_deit_small(pretrained: bool = False, **kwargs: Any) -> PolaDeiT:
    """PolaFormer-DeiT-S, 23.0 M parameters."""
    return build_backbone(
        PolaDeiT, "pola_deit_small", pretrained, {"embed_dim": 384, "num_heads": 6, "drop_path_rate": 0.1}, **kwargs
    )
