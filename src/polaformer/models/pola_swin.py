"""PolaFormer in the layout of the Swin Transformer: linear attention in the first stages, shifted windows in the last.

Papers: PolaFormer, ICLR 2025 (https://arxiv.org/abs/2501.15061); Swin Transformer, ICCV 2021
(https://arxiv.org/abs/2103.14030).

Parameter names and shapes are those of the released checkpoints, and at the size a model is built for the outputs are
theirs too. What differs: any image size from 32 × 32 px on, on the fly, where padded tokens are never attended to; features as maps
(B, C, H, W); no buffers: window masks and offsets are computed where they are used, so nothing goes stale.

Letters: B batch, C channels, H × W map, h × w window, N = h·w tokens of a window, nW windows a map.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from timm.layers import calculate_drop_path_rates
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from ..layers import PolaAttention
from ._backbone import Backbone, PatchEmbed, check_attn_type, init_weights, take_indices
from ._registration import build_backbone, default_cfg
from ._tables import Grid
from ._window_blocks import LinearBlock, PatchMerging, SoftmaxBlock, Stage
from ._windows import WindowAttention

STRIDES = (4, 8, 16, 32)


class PolaSwin(Backbone):
    """Four stages at strides 4, 8, 16, 32: by default linear attention in two, shifted-window softmax attention in two.

    Args:
        img_size: Size in pixels the position tables are built for, side or (height, width). Other sizes run too.
        in_chans: Image channels.
        num_classes: Classes; 0 = no classifier.
        global_pool: 'avg', or '' for unpooled output.
        embed_dim: Channels of the first stage; each further stage has twice as many.
        depths: Blocks of each stage.
        num_heads: Heads of each stage.
        attn_type: One letter a stage: L linear, S softmax.
        window_size: Largest window side of linear blocks, in tokens. None: the whole map, at any size.
        softmax_window_size: Largest window side of softmax blocks, in tokens.
        mlp_ratio: Width of the MLP's hidden layer over its input's.
        alpha: Largest exponent of the linear attention less 1.
        kernel_size: Side of the depthwise convolution in linear attention, odd.
        qkv_bias: Biases of queries, keys, values and gate.
        drop_rate: Dropout before the classifier.
        proj_drop_rate: Dropout after each projection of attention and MLP.
        drop_path_rate: Stochastic depth of the last block; rises linearly from 0 in the first.

    Raises:
        ValueError: an argument has a wrong value.

    Source: the Swin models of PolaFormer (arXiv 2501.15061), table 1 and appendix.
    """

    recomputed = ("relative_position_index", "attn_mask")

    def __init__(
        self,
        img_size: Union[int, Tuple[int, int]] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        attn_type: str = "LLSS",
        window_size: Optional[int] = 56,
        softmax_window_size: int = 7,
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
        for name, side in (("window_size", window_size), ("softmax_window_size", softmax_window_size)):
            if side is not None and side < 1:
                raise ValueError(f"{name} must be at least 1, got {side}")
        whole_map = 2**31  # a window no map outgrows
        linear_limit = whole_map if window_size is None else window_size
        self.limits = [linear_limit if letter == "L" else softmax_window_size for letter in check_attn_type(attn_type)]
        dims = [embed_dim * 2**stage for stage in range(4)]
        self.feature_info = [
            {"num_chs": dim, "reduction": stride, "module": f"layers.{i}.blocks"}
            for i, (dim, stride) in enumerate(zip(dims, STRIDES))
        ]
        self.patch_embed = PatchEmbed(in_chans, embed_dim, 4, **dd)
        drop_paths: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        shared = {"qkv_bias": qkv_bias, "proj_drop": proj_drop_rate, **dd}
        linear = {"projection": "qkvg", "alpha": alpha, "kernel_size": kernel_size, **shared}
        stages: List[nn.Module] = []
        for i, window in enumerate(self._windows(self.img_size)):
            blocks: List[nn.Module] = []
            for j, rate in enumerate(drop_paths[i]):
                attn: nn.Module
                if attn_type[i] == "L":
                    attn = PolaAttention(dims[i], num_heads[i], grid_size=window, **linear)
                    kind = LinearBlock
                else:
                    attn = WindowAttention(dims[i], num_heads[i], window, **shared)
                    kind = SoftmaxBlock
                blocks.append(kind(attn, dims[i], mlp_ratio, self.limits[i], j % 2 == 1, proj_drop_rate, rate, **dd))
            stages.append(Stage(blocks, PatchMerging(dims[i], **dd) if i < 3 else nn.Identity()))
        self.layers = nn.ModuleList(stages)
        self.norm = nn.LayerNorm(dims[-1], eps=1e-5, **dd)
        self.apply(init_weights)
        self._add_head(dims[-1], drop_rate, **dd)

    def _windows(self, img_size: Tuple[int, int]) -> List[Grid]:
        """Return the window of each stage for images of `img_size`."""
        maps = [(-(-img_size[0] // stride), -(-img_size[1] // stride)) for stride in STRIDES]
        return [(min(rows, limit), min(columns, limit)) for (rows, columns), limit in zip(maps, self.limits)]

    def table_grids(self, img_size: Tuple[int, int]) -> Dict[str, Grid]:
        """Return the window of each positional encoding and bias table if this model was built for `img_size`."""
        windows = self._windows(img_size)
        endings = (".positional_encoding", ".relative_position_bias_table")
        names = [name for name, _ in self.named_parameters() if name.endswith(endings)]
        return {name: windows[int(name.split(".")[1])] for name in names}

    def group_matcher(self, coarse: bool = False) -> Dict[str, Any]:
        """Return patterns that sort the parameters into layers, for layer-wise learning rates."""
        blocks = [
            (r"^layers\.(\d+)\.blocks\.(\d+)", None),
            (r"^layers\.(\d+)\.downsample", (999,)),
            (r"^norm", (99999,)),
        ]
        return {"stem": r"^patch_embed", "blocks": r"^layers\.(\d+)" if coarse else blocks}

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map (B, num_features, ⌈H/32⌉, ⌈W/32⌉) of images x (B, in_chans, H, W)."""
        x = self.patch_embed(x)
        for stage in self.layers:
            x = stage(x)
        return self.norm(x).permute(0, 3, 1, 2)

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
        """Return the maps (B, C, H, W) of stages `indices`, ascending; an int n: the last n, None: all. As timm defines it.

        `norm` applies the final norm to the last stage only; the others have other widths. Without `intermediates_only` the result is (features, maps).
        """
        assert output_fmt == "NCHW", "output_fmt must be 'NCHW'"
        taken, last = take_indices(len(self.layers), indices)
        x = self.patch_embed(x)
        intermediates: List[Tensor] = []
        for i, stage in enumerate(self.layers):
            if i <= last or not stop_early:
                x = stage.blocks(x)  # pyright: ignore[reportCallIssue]
                if i in taken:
                    tap = self.norm(x) if norm and i == len(self.layers) - 1 else x
                    intermediates.append(tap.permute(0, 3, 1, 2))
                if i < last or not stop_early:
                    x = stage.downsample(x)  # pyright: ignore[reportCallIssue]
        if intermediates_only:
            return intermediates
        if last == len(self.layers) - 1 or not stop_early:
            x = self.norm(x)
        return x.permute(0, 3, 1, 2), intermediates

    def prune_intermediate_layers(
        self, indices: Union[int, List[int]] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> List[int]:
        """Remove what the maps at `indices` do not need; returns the indices counted from 0."""
        taken, last = take_indices(len(self.layers), indices)
        cut = last < len(self.layers) - 1
        if cut:
            self.pruned += [f"layers.{last}.downsample."] + [f"layers.{i}." for i in range(last + 1, len(self.layers))]
            self.layers = self.layers[: last + 1]
            self.layers[last].downsample = nn.Identity()
        self._finish_pruning(last if cut else None, prune_norm, prune_head)
        return taken


default_cfgs = generate_default_cfgs(
    {
        "pola_swin_tiny.in1k": default_cfg("patch_embed.proj"),
        "pola_swin_small.in1k": default_cfg("patch_embed.proj"),
        "pola_swin_base.in1k": default_cfg("patch_embed.proj"),
        "pola_swin_base_384.in1k": default_cfg("patch_embed.proj", size=384, crop_pct=1.0),
    }
)


@register_model
def pola_swin_tiny(pretrained: bool = False, **kwargs: Any) -> PolaSwin:
    """PolaFormer-Swin-T, 29.3 M parameters."""
    return build_backbone(
        PolaSwin, "pola_swin_tiny", pretrained, {"depths": (2, 2, 6, 2), "drop_path_rate": 0.2}, **kwargs
    )


@register_model
def pola_swin_small(pretrained: bool = False, **kwargs: Any) -> PolaSwin:
    """PolaFormer-Swin-S, 50.6 M parameters."""
    return build_backbone(
        PolaSwin, "pola_swin_small", pretrained, {"depths": (2, 2, 18, 2), "drop_path_rate": 0.3}, **kwargs
    )


_BASE = {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32), "drop_path_rate": 0.5}


@register_model
def pola_swin_base(pretrained: bool = False, **kwargs: Any) -> PolaSwin:
    """PolaFormer-Swin-B, 89.1 M parameters."""
    return build_backbone(PolaSwin, "pola_swin_base", pretrained, _BASE, **kwargs)


@register_model
def pola_swin_base_384(pretrained: bool = False, **kwargs: Any) -> PolaSwin:
    """PolaFormer-Swin-B for 384 × 384 px, 91.6 M parameters."""
    defaults = {**_BASE, "img_size": 384, "window_size": 96, "softmax_window_size": 12}
    return build_backbone(PolaSwin, "pola_swin_base_384", pretrained, defaults, **kwargs)
