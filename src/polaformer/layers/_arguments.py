"""Checks of the layers' constructor arguments; each raises a ValueError that names the argument."""

from numbers import Integral
from typing import Any


def check_whole(name: str, value: Any, smallest: int) -> None:
    """Refuse what is no whole number of at least `smallest`."""
    if not isinstance(value, Integral) or value < smallest:
        raise ValueError(f"{name} must be a whole number of at least {smallest}, got {value!r}")


def check_grid_size(grid_size: Any, spatial_dims: int) -> None:
    """Refuse a grid without just one extent for each axis; None is no grid."""
    if grid_size is None:
        return
    if not isinstance(grid_size, (tuple, list)) or len(grid_size) != spatial_dims:
        raise ValueError(f"grid_size must have one extent for each of {spatial_dims} axes, got {grid_size!r}")
    if any(not isinstance(extent, Integral) or extent < 1 for extent in grid_size):
        raise ValueError(f"grid_size must hold whole numbers of at least 1, got {grid_size!r}")


def check_choices(spatial_dims: int, projection: str, branch: str, value_resize: str) -> None:
    """Refuse what is none of an argument's choices."""
    for name, value, choices in (
        ("spatial_dims", spatial_dims, (1, 2, 3)),
        ("projection", projection, ("qg_kv", "qkvg")),
        ("branch", branch, ("dwc", "dcn", "none")),
        ("value_resize", value_resize, ("sequence", "map")),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def check_sizes(
    dim: int, num_heads: int, sr_ratio: int, kernel_size: int, num_prefix_tokens: int, alpha: float
) -> None:
    """Refuse sizes that no layer can have."""
    for name, value, smallest in (
        ("dim", dim, 1),
        ("num_heads", num_heads, 1),
        ("sr_ratio", sr_ratio, 1),
        ("kernel_size", kernel_size, 1),
        ("num_prefix_tokens", num_prefix_tokens, 0),
    ):
        check_whole(name, value, smallest)
    if dim % num_heads != 0:
        raise ValueError(f"num_heads must divide dim = {dim}, got {num_heads}")
    if kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd, got {kernel_size}")
    if not alpha >= 0:
        raise ValueError(f"alpha must be at least 0, got {alpha}")


def check_combinations(spatial_dims: int, projection: str, sr_ratio: int, branch: str) -> None:
    """Refuse arguments that do not go together."""
    if sr_ratio > 1 and (spatial_dims != 2 or projection != "qg_kv"):
        raise ValueError(f"sr_ratio must be 1 unless spatial_dims is 2 and projection is 'qg_kv', got {sr_ratio}")
    if branch == "dcn" and spatial_dims != 2:
        raise ValueError(f"branch must be 'dwc' or 'none' unless spatial_dims is 2, got {branch!r}")
