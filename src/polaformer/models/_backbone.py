"""What every backbone of this package has in common: patches, the token block, the classifier and the position tables.

Letters: B batch, C channels, H × W feature map, N = H·W tokens.
"""

from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from timm.layers import DropPath, Mlp, trunc_normal_
from timm.models._features import feature_take_indices
from timm.models._input import update_model_input_size
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from ..layers.positions import pad_to_multiple
from ._tables import Grid, fit_table


class UnsupportedPooling(ValueError, AssertionError):
    """`global_pool` is not one this model has: a ValueError for users, and the AssertionError that timm's callers expect."""


class PatchEmbed(nn.Module):
    """Cut a map into patches, (B, in_chans, H, W) to (B, ⌈H/p⌉, ⌈W/p⌉, dim), padding it with zeros at the bottom and right."""

    def __init__(
        self, in_chans: int, dim: int, patch_size: int, norm: bool = True, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_chans, dim, patch_size, stride=patch_size, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(dim, eps=1e-5, device=device, dtype=dtype) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(pad_to_multiple(x, [self.patch_size, self.patch_size]))
        return self.norm(x.permute(0, 2, 3, 1))


class TokenBlock(nn.Module):
    """Pre-norm transformer block over a map of tokens: x += attn(norm1(x)), then x += mlp(norm2(x)); x (B, N, C)."""

    def __init__(
        self,
        attn: nn.Module,
        dim: int,
        mlp_ratio: float,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.grad_checkpointing = False
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.attn = attn
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop, **dd)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, size: List[int]) -> Tensor:
        if self.grad_checkpointing and not torch.jit.is_scripting():
            return checkpoint(self._residuals, x, size)
        return self._residuals(x, size)

    def _residuals(self, x: Tensor, size: List[int]) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x), size))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class Backbone(nn.Module, ABC):
    """Base of the backbones: everything timm asks of a model that does not depend on how its features are computed.

    A subclass computes unpooled features (B, num_features, H, W) in `forward_features` and names its position tables in
    `table_grids`.
    """

    feature_info: List[Dict[str, Any]]
    num_features: int
    head_hidden_size: int
    pretrained_cfg: Dict[str, Any]
    # What features_only returns unless told otherwise.
    out_indices: Union[int, Tuple[int, ...]] = (0, 1, 2, 3)
    # Last parts of names of buffers that released checkpoints hold and this code computes anew.
    recomputed: Tuple[str, ...] = ()

    def __init__(self, img_size: Union[int, Tuple[int, int]], in_chans: int, num_classes: int, global_pool: str):
        super().__init__()
        self.img_size = check_img_size(img_size)
        self.in_chans = in_chans
        self.num_classes = num_classes
        self.global_pool = check_pooling(global_pool)
        self.pruned: List[str] = []  # modules cut off by prune_intermediate_layers, as prefixes of parameter names
        self.register_load_state_dict_pre_hook(_drop_recomputed_buffers)

    def _add_head(self, num_features: int, drop_rate: float, device: Any, dtype: Any) -> None:
        self.num_features = self.head_hidden_size = num_features
        self.head_drop = nn.Dropout(drop_rate)
        self.head = make_classifier(num_features, self.num_classes, device, dtype)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool features (B, C, H, W) and classify them.

        Args:
            x: Output of `forward_features`.
            pre_logits: Stop before the classifier.

        Returns:
            Logits (B, num_classes), or (B, C) without a classifier. With global_pool='' a map: (B, num_classes or C, H, W).
        """
        if self.global_pool == "avg":
            x = self.head_drop(x.mean((2, 3)))
            return x if pre_logits else self.head(x)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def get_classifier(self) -> nn.Module:
        """Return the classifier, nn.Identity if there is none."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Optional[str] = None) -> None:
        """Replace the classifier by a new one.

        Args:
            num_classes: Number of classes; 0 = no classifier.
            global_pool: 'avg', '' (none) or None (as before).
        """
        if global_pool is not None:
            self.global_pool = check_pooling(global_pool)
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = make_classifier(self.num_features, num_classes, like.device, like.dtype).train(self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block's activations in backward instead of keeping them."""
        for module in self.modules():
            if hasattr(module, "grad_checkpointing"):
                setattr(module, "grad_checkpointing", enable)  # noqa: B010 (pyright knows modules' attributes as tensors only)

    def no_weight_decay(self) -> set[str]:
        """Return patterns of the parameters, beside biases and norms, that weight decay should leave alone."""
        return {"pos_embed*", "*.positional_encoding", "*.power", "*.scale", "*.relative_position_bias_table"}

    @abstractmethod
    def table_grids(self, img_size: Tuple[int, int]) -> Dict[str, Grid]:
        """Return the grid (rows, columns) of each position table of this model if it was built for `img_size`."""

    def set_input_size(self, img_size: Union[int, Tuple[int, int]]) -> None:
        """Resize the position tables for images of another size.

        Not needed to run at that size, since the model resizes its tables on the fly: it saves that work, and lets training
        go on with tables of the new size.

        Args:
            img_size: Side, or (height, width), in pixels.
        """
        img_size = check_img_size(img_size)
        old, new = self.table_grids(self.img_size), self.table_grids(img_size)
        with torch.no_grad():
            for name, grid in new.items():
                owner_name, _, attribute = name.rpartition(".")
                owner = self.get_submodule(owner_name)
                table = getattr(owner, attribute)
                resized = fit_table(name, table.detach(), old[name], grid)
                setattr(owner, attribute, nn.Parameter(resized, requires_grad=table.requires_grad))
        self.img_size = img_size
        self._record_grids(new)
        update_model_input_size(self, img_size)

    def _record_grids(self, grids: Dict[str, Grid]) -> None:
        for name, grid in grids.items():
            owner = self.get_submodule(name.rpartition(".")[0])
            if owner is not self:
                setattr(owner, "grid_size", list(grid))  # noqa: B010 (as above)

    def _finish_pruning(self, end: Optional[int], prune_norm: bool, prune_head: bool) -> None:
        """Remove norm and head as asked, and in any case where the features now end at an earlier tap, index `end`."""
        if prune_norm or end is not None:
            self.norm = nn.Identity()
            self.pruned.append("norm.")
        if end is not None:
            self.num_features = self.head_hidden_size = self.feature_info[end]["num_chs"]
        if prune_head or end is not None:
            self.reset_classifier(0, "")


def _drop_recomputed_buffers(module: Any, state_dict: Dict[str, Tensor], prefix: str, *_: Any) -> None:
    for name in [n for n in state_dict if n.startswith(prefix) and n.rpartition(".")[2] in module.recomputed]:
        del state_dict[name]


def make_classifier(num_features: int, num_classes: int, device: Any, dtype: Any) -> nn.Module:
    """Return a linear classifier, truncated normal 0.02 with zero bias; nn.Identity for 0 classes."""
    if num_classes == 0:
        return nn.Identity()
    head = nn.Linear(num_features, num_classes, device=device, dtype=dtype)
    init_weights(head)
    return head


def init_weights(module: nn.Module) -> None:
    """Start linear weights at truncated normal 0.02 and zero bias; convolutions and LayerNorms keep PyTorch's own start."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def check_img_size(img_size: Union[int, Tuple[int, int]]) -> Tuple[int, int]:
    """Return (height, width); ValueError unless both are at least 32 px."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if min(height, width) < 32:
        raise ValueError(f"img_size must be at least 32 px in height and width, got {(height, width)}")
    return height, width


def check_pooling(global_pool: str) -> str:
    """Return `global_pool`; ValueError unless it is 'avg' or ''."""
    if global_pool not in ("avg", ""):
        raise UnsupportedPooling(f"global_pool must be 'avg' or '' (no pooling), got {global_pool!r}")
    return global_pool


def check_attn_type(attn_type: str) -> str:
    """Return `attn_type`; ValueError unless it holds one letter, L or S, for each of four stages."""
    if len(attn_type) != 4 or set(attn_type) - {"L", "S"}:
        raise ValueError(f"attn_type must be four letters, L (linear) or S (softmax) for each stage, got {attn_type!r}")
    return attn_type


def take_indices(count: int, indices: Optional[Union[int, List[int]]]) -> Tuple[List[int], int]:
    """Return which of `count` feature maps `indices` name, counted from 0, and the last of them.

    Args:
        count: Maps there are.
        indices: A list, negative ones counted from the end; the last n for an int; all for None.

    Raises:
        ValueError: there are no such maps.
    """
    if isinstance(indices, int):
        if indices < 1 or indices > count:
            raise ValueError(f"indices must be from 1 to {count} to name the last maps, got {indices}")
    elif indices is not None:
        if len(indices) == 0:
            raise ValueError("indices must name at least one map, got none")
        for index in indices:
            if index < -count or index >= count:
                raise ValueError(f"indices must lie between {-count} and {count - 1}, got {index}")
    return feature_take_indices(count, indices)
