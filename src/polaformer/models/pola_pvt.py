"""PolaFormer in the layout of the Pyramid Vision Transformer.

Papers: PolaFormer, ICLR 2025 (https://arxiv.org/abs/2501.15061); Pyramid Vision Transformer, ICCV 2021
(https://arxiv.org/abs/2102.12122).

Parameter names and shapes are those of the released checkpoints, and at the size a model is built for the outputs are
theirs too. What differs: any image size from 32 × 32 px on, features as maps, and `norm`, which the released models carry but never
apply: its two tensors are buffers here, so that checkpoints load and save unchanged while every parameter has a gradient.

Letters: B batch, C channels, H × W feature map, N = H·W tokens, M = N / r² reduced tokens.
"""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from timm.layers import calculate_drop_path_rates, trunc_normal_
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from ..layers import PolaAttention
from ._backbone import Backbone, PatchEmbed, TokenBlock, check_attn_type, init_weights, take_indices
from ._pyramid import SpatialReductionAttention, Stage, UnusedNorm
from ._registration import build_backbone, default_cfg
from ._tables import Grid

SOFTMAX_SR_RATIOS = (8, 4, 2, 1)  # PVT's own reductions
PATCH_SIZES = (4, 2, 2, 2)
STRIDES = (4, 8, 16, 32)


class PolaPVT(Backbone):
    """Pyramid of four stages at strides 4, 8, 16, 32, by default with polarity-aware linear attention in all of them.

    Args:
        img_size: Size in pixels the position tables are built for, side or (height, width). Other sizes run too.
        in_chans: Image channels.
        num_classes: Classes; 0 = no classifier.
        global_pool: 'avg', or '' for unpooled output.
        embed_dims: Channels of each stage.
        num_heads: Heads of each stage.
        mlp_ratios: Width of the MLP's hidden layer over its input's, for each stage.
        depths: Blocks of each stage.
        attn_type: One letter a stage: L linear, S softmax.
        la_sr_ratios: One digit a stage: spatial reduction of keys and values in linear stages. Softmax stages use 8, 4, 2, 1.
        alpha: Largest exponent of the linear attention less 1.
        kernel_size: Side of the depthwise convolution in linear attention, odd.
        qkv_bias: Biases of queries, gate, keys and values.
        drop_rate: Dropout before the classifier.
        proj_drop_rate: Dropout after each projection of attention and MLP.
        drop_path_rate: Stochastic depth of the last block; rises linearly from 0 in the first.

    Raises:
        ValueError: an argument has a wrong value.

    Source: the PVT models of PolaFormer (arXiv 2501.15061), table 1 and appendix.
    """

    if TYPE_CHECKING:  # not for TorchScript, which takes annotated modules for interfaces
        patch_embed1: PatchEmbed
        patch_embed2: PatchEmbed
        patch_embed3: PatchEmbed
        patch_embed4: PatchEmbed
        block1: Stage
        block2: Stage
        block3: Stage
        block4: Stage

    has_stage2: torch.jit.Final[bool]
    has_stage3: torch.jit.Final[bool]
    has_stage4: torch.jit.Final[bool]

    def __init__(
        self,
        img_size: Union[int, Tuple[int, int]] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        embed_dims: Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (1, 2, 5, 8),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        depths: Sequence[int] = (2, 2, 2, 2),
        attn_type: str = "LLLL",
        la_sr_ratios: str = "1111",
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
        self.sr_ratios = [
            int(digit) if letter == "L" else SOFTMAX_SR_RATIOS[stage]
            for stage, (letter, digit) in enumerate(zip(check_attn_type(attn_type), _check_sr_ratios(la_sr_ratios)))
        ]
        self.pos_grids = [list(grid) for grid in _map_sizes(self.img_size)]
        self.num_stages = 4
        self.has_stage2 = self.has_stage3 = self.has_stage4 = True
        self.feature_info = [
            {"num_chs": dim, "reduction": stride, "module": f"block{stage}"}
            for stage, (dim, stride) in enumerate(zip(embed_dims, STRIDES), start=1)
        ]
        drop_paths: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)

        for i in range(4):
            dim, heads, grid = embed_dims[i], num_heads[i], self.pos_grids[i]
            reduced = _divide_up(grid, self.sr_ratios[i])

            def attention(i: int = i, dim: int = dim, heads: int = heads, reduced: Grid = reduced) -> nn.Module:
                shared = {"qkv_bias": qkv_bias, "sr_ratio": self.sr_ratios[i], "proj_drop": proj_drop_rate, **dd}
                if attn_type[i] == "S":
                    return SpatialReductionAttention(dim, heads, **shared)
                return PolaAttention(dim, heads, grid_size=reduced, alpha=alpha, kernel_size=kernel_size, **shared)

            previous = embed_dims[i - 1] if i else in_chans
            setattr(self, f"patch_embed{i + 1}", PatchEmbed(previous, dim, PATCH_SIZES[i], **dd))
            setattr(self, f"pos_embed{i + 1}", nn.Parameter(torch.empty(1, grid[0] * grid[1], dim, **dd)))
            blocks = [TokenBlock(attention(), dim, mlp_ratios[i], proj_drop_rate, rate, **dd) for rate in drop_paths[i]]
            setattr(self, f"block{i + 1}", Stage(blocks))
            trunc_normal_(getattr(self, f"pos_embed{i + 1}"), std=0.02)
        self.norm = UnusedNorm(embed_dims[-1], **dd)
        self.apply(init_weights)
        self._add_head(embed_dims[-1], drop_rate, **dd)

    def table_grids(self, img_size: Tuple[int, int]) -> Dict[str, Grid]:
        """Return the grid of each position table if this model was built for `img_size`."""
        grids: Dict[str, Grid] = {}
        for stage, size in enumerate(_map_sizes(img_size), start=1):
            names = [
                name for name, _ in self.named_parameters() if name.startswith((f"pos_embed{stage}", f"block{stage}."))
            ]
            reduced = _divide_up(size, self.sr_ratios[stage - 1])
            grids |= {name: reduced for name in names if name.endswith("positional_encoding")}
            grids |= {name: size for name in names if name.startswith("pos_embed")}
        return grids

    def _record_grids(self, grids: Dict[str, Grid]) -> None:
        super()._record_grids(grids)
        self.pos_grids = [list(grid) for grid in _map_sizes(self.img_size)]

    def group_matcher(self, coarse: bool = False) -> Dict[str, Any]:
        """Return patterns that sort the parameters into layers, for layer-wise learning rates."""
        return {
            "stem": r"^(?:patch_embed1|pos_embed1)",
            "blocks": r"^(?:patch_embed|pos_embed|block)(\d)"
            if coarse
            else [
                (r"^(?:patch_embed|pos_embed)(\d)", (0,)),
                (r"^block(\d)\.(\d+)", None),
            ],
        }

    def _maps(self, x: Tensor, last: int) -> List[Tensor]:
        """Return the maps (B, C, H, W) of the stages up to `last`, counted from 0, of images x (B, in_chans, H, W)."""
        # TorchScript needs the stages by name (it cannot look up attributes) and skips those whose constant is False.
        maps = [self.block1(self.patch_embed1(x), self.pos_embed1, self.pos_grids[0])]
        if self.has_stage2 and last > 0:
            maps.append(self.block2(self.patch_embed2(maps[0]), self.pos_embed2, self.pos_grids[1]))
        if self.has_stage3 and last > 1:
            maps.append(self.block3(self.patch_embed3(maps[1]), self.pos_embed3, self.pos_grids[2]))
        if self.has_stage4 and last > 2:
            maps.append(self.block4(self.patch_embed4(maps[2]), self.pos_embed4, self.pos_grids[3]))
        return maps

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last stage's map (B, num_features, ⌈H/32⌉, ⌈W/32⌉) of images x (B, in_chans, H, W)."""
        return self._maps(x, 3)[-1]

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
        """Return the maps of several stages.

        Args:
            x: Images (B, in_chans, H, W).
            indices: Stages 0 to 3: a list, the last n for an int, all for None.
            norm: No effect: this family has no final norm.
            stop_early: Do not compute stages after the last one asked for.
            output_fmt: 'NCHW'.
            intermediates_only: Leave out the final features.

        Returns:
            [map (B, C, H, W) of each stage, ascending], or (final features, that list).
        """
        assert output_fmt == "NCHW", "output_fmt must be 'NCHW'"
        taken, last = take_indices(self.num_stages, indices)
        maps = self._maps(x, last if stop_early else 3)
        intermediates: List[Tensor] = []
        for i, x in enumerate(maps):
            if i in taken:
                intermediates.append(x)
        if intermediates_only:
            return intermediates
        return maps[-1], intermediates

    def prune_intermediate_layers(
        self, indices: Union[int, List[int]] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> List[int]:
        """Remove what the maps at `indices` do not need; returns the indices counted from 0."""
        taken, last = take_indices(self.num_stages, indices)
        for stage in range(last + 2, self.num_stages + 1):
            for name in (f"patch_embed{stage}", f"pos_embed{stage}", f"block{stage}"):
                delattr(self, name)
                self.pruned.append(name)
            setattr(self, f"has_stage{stage}", False)
        self._finish_pruning(last if last + 1 < self.num_stages else None, prune_norm, prune_head)
        self.num_stages = last + 1
        return taken


def _divide_up(size: Sequence[int], by: int) -> Grid:
    return -(-size[0] // by), -(-size[1] // by)


def _map_sizes(img_size: Tuple[int, int]) -> List[Grid]:
    return [_divide_up(img_size, stride) for stride in STRIDES]


def _check_sr_ratios(la_sr_ratios: str) -> str:
    if len(la_sr_ratios) != 4 or not set(la_sr_ratios) <= set("123456789"):
        raise ValueError(f"la_sr_ratios must be four digits from 1 to 9, one a stage, got {la_sr_ratios!r}")
    return la_sr_ratios


default_cfgs = generate_default_cfgs(
    {
        "pola_pvt_nano.untrained": default_cfg("patch_embed1.proj", size=32, crop_pct=1.0),
        "pola_pvt_tiny.in1k": default_cfg("patch_embed1.proj"),
        "pola_pvt_small.in1k": default_cfg("patch_embed1.proj"),
        "pola_pvt_medium.in1k": default_cfg("patch_embed1.proj"),
        "pola_pvt_large.in1k": default_cfg("patch_embed1.proj"),
    }
)


@register_model
def pola_pvt_nano(pretrained: bool = False, **kwargs: Any) -> PolaPVT:
    """Small pyramid for 32 × 32 images, 1.0 M parameters: tests, demonstrations, first experiments. Not from the paper."""
    defaults = {
        "img_size": 32,
        "embed_dims": (24, 48, 96, 160),
        "num_heads": (1, 2, 4, 8),
        "mlp_ratios": (4, 4, 4, 4),
        "depths": (2, 2, 2, 1),
    }
    return build_backbone(PolaPVT, "pola_pvt_nano", pretrained, defaults, **kwargs)


@register_model
def pola_pvt_tiny(pretrained: bool = False, **kwargs: Any) -> PolaPVT:
    """PolaFormer-PVT-T, 12.9 M parameters."""
    defaults = {"depths": (2, 2, 2, 2), "drop_path_rate": 0.1}
    return build_backbone(PolaPVT, "pola_pvt_tiny", pretrained, defaults, **kwargs)


@register_model
def pola_pvt_small(pretrained: bool = False, **kwargs: Any) -> PolaPVT:
    """PolaFormer-PVT-S, 23.2 M parameters."""
    defaults = {"depths": (3, 4, 6, 3), "drop_path_rate": 0.1}
    return build_backbone(PolaPVT, "pola_pvt_small", pretrained, defaults, **kwargs)


@register_model
def pola_pvt_medium(pretrained: bool = False, **kwargs: Any) -> PolaPVT:
    """PolaFormer-PVT-M, 40.0 M parameters."""
    defaults = {"depths": (3, 4, 18, 3), "drop_path_rate": 0.3}
    return build_backbone(PolaPVT, "pola_pvt_medium", pretrained, defaults, **kwargs)


@register_model
def pola_pvt_large(pretrained: bool = False, **kwargs: Any) -> PolaPVT:
    """PolaFormer-PVT-L, 54.4 M parameters."""
    defaults = {"depths": (3, 8, 27, 3), "drop_path_rate": 0.3}
    return build_backbone(PolaPVT, "pola_pvt_large", pretrained, defaults, **kwargs)
