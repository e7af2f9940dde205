"""Loading checkpoints: released ones, plain state dicts, timm's and our own.

A file is read in full, brought to the model's names and sizes and compared with the model before the first tensor is
copied, so a model is either loaded or untouched.
"""

import functools
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple, Union

import timm
import torch
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from ._reading import checkpoint_file, read_state_dict, strip_prefixes
from ._tables import fit_table, grid_of

if TYPE_CHECKING:
    from ._backbone import Backbone

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadReport:
    """What `load_checkpoint` did."""

    path: str
    loaded: List[str] = field(default_factory=list)  # parameters and buffers taken from the file
    resized: List[str] = field(default_factory=list)  # those of them fitted to the model's image size
    rebuilt: List[str] = field(
        default_factory=list
    )  # classifier parameters started anew: the file is not of the model's classes
    skipped: List[str] = field(
        default_factory=list
    )  # tensors in the file the model has no use for: classifier, pruned layers

    def __str__(self) -> str:
        text = f"{self.path}: {len(self.loaded)} tensors loaded"
        for action in ("resized", "rebuilt", "skipped"):
            names = getattr(self, action)
            if names:
                text += f"; {action} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return text


def fit_state_dict(
    state_dict: Dict[str, Tensor], model: "Backbone", img_size: Optional[Tuple[int, int]] = None
) -> Tuple[Dict[str, Tensor], List[str]]:
    """Bring weights to the image size a model was built for, and drop the buffers it computes itself.

    Args:
        state_dict: Tensors by name; left unchanged.
        model: A backbone of this package.
        img_size: Size (height, width) in pixels the weights were trained at; None: a square one.

    Returns:
        Tensors by name, and the names of those resized.
    """
    fitted = {name: tensor for name, tensor in state_dict.items() if name.rpartition(".")[2] not in model.recomputed}
    given = {} if img_size is None else model.table_grids(img_size)
    resized = []
    for name, grid in model.table_grids(model.img_size).items():
        if name in fitted:
            source = given.get(name) or grid_of(name, fitted[name], grid)
            if source != grid:
                fitted[name] = fit_table(name, fitted[name], source, grid)
                resized.append(name)
    return fitted, resized


def checkpoint_filter_fn(state_dict: Dict[str, Tensor], model: "Backbone") -> Dict[str, Tensor]:
    """Prepare the weights of a checkpoint for `model.load_state_dict`, for timm's `pretrained_filter_fn`."""
    return fit_state_dict(strip_prefixes(state_dict), model)[0]


def load_checkpoint(
    model: nn.Module, path: Union[str, Path], *, img_size: Optional[Tuple[int, int]] = None
) -> LoadReport:
    """Load a checkpoint into a backbone of this package: everything fits, or nothing is loaded.

    The classifier starts anew if the file has none or one of another number of classes, and is left out if the model has
    none. Position tables are resized to the image size the model was built for.

    Args:
        model: A model made by `timm.create_model('pola_...')`, with features_only=True or without.
        path: Checkpoint file or run folder, see `read_state_dict`.
        img_size: Size (height, width) in pixels the checkpoint was trained at; only needed if it is not square.

    Returns:
        What was loaded, resized, rebuilt and skipped.

    Raises:
        FileNotFoundError: no such file, or a folder without best weights.
        ValueError: the model is none of this package, the file cannot be read, or names or shapes differ from the model's. The model is unchanged.
    """
    backbone: Any = model.model if isinstance(model, FeatureGetterNet) else model
    if not hasattr(backbone, "table_grids"):
        raise ValueError(f"model must be a backbone of this package, got {type(backbone).__name__}")
    path = checkpoint_file(path)
    source = read_state_dict(path)
    state_dict, resized = fit_state_dict(source, backbone, img_size)
    own = backbone.state_dict()

    unused = ("head.",) if backbone.num_classes == 0 else ()
    skipped = [name for name in state_dict if name.startswith((*backbone.pruned, *unused)) and name not in own]
    for name in skipped:
        del state_dict[name]
    head = [name for name in state_dict if name.startswith("head.")]
    other_classes = "head.weight" in head and state_dict["head.weight"].shape[0] != backbone.num_classes
    rebuilt = []
    if backbone.num_classes and (not head or other_classes):
        rebuilt = [name for name in own if name.startswith("head.")]
        state_dict = {name: tensor for name, tensor in state_dict.items() if name not in head}
    _check(backbone, own, state_dict, source, rebuilt, path)

    if rebuilt:
        backbone.reset_classifier(backbone.num_classes)
        _logger.warning("%s is not of the model's %d classes: the classifier starts anew", path, backbone.num_classes)
    backbone.load_state_dict(state_dict, strict=False)
    return LoadReport(str(path), list(state_dict), resized, rebuilt, skipped)


def _check(
    model: "Backbone",
    own: Dict[str, Tensor],
    state_dict: Dict[str, Tensor],
    source: Dict[str, Tensor],
    rebuilt: List[str],
    path: Union[str, Path],
) -> None:
    """Raise a ValueError unless names and shapes are the model's."""
    missing = [name for name in own if name not in state_dict and name not in rebuilt]
    unexpected = [name for name in state_dict if name not in own]
    misshapen = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
        for name, tensor in state_dict.items()
        if name in own and tensor.shape != own[name].shape
    ]
    if not (missing or unexpected or misshapen):
        return
    name = model.pretrained_cfg.get("architecture", "the model") if hasattr(model, "pretrained_cfg") else "the model"
    belongs_to = identify(source)
    if belongs_to not in (None, name):
        raise ValueError(
            f"{path} is a checkpoint of {belongs_to}, not of {name}: load it into timm.create_model({belongs_to!r})"
        )
    differences = [
        f"{what} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for what, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", misshapen))
        if names
    ]
    hint = (
        f"it is a {name} checkpoint, but incomplete or of other arguments"
        if belongs_to
        else "it fits no registered model"
    )
    raise ValueError(f"{path} does not fit {name}, nothing was loaded; {hint} ({'; '.join(differences)})")


def identify(state_dict: Dict[str, Tensor]) -> Optional[str]:
    """Return the registered model whose names and shapes agree best with the weights, None if most of them differ.

    Position tables and classifier need not agree in shape, since they depend on the image size and on the classes: their
    shapes only decide between models that are equal otherwise.
    """
    best, best_score = None, (0.5, 0)
    for name, (own, of_any_size, recomputed) in _registered_shapes().items():
        theirs = {key: value.shape for key, value in state_dict.items() if key.rpartition(".")[2] not in recomputed}
        shared = [key for key in theirs if key in own]
        equal = {key for key in shared if own[key] == theirs[key]}
        agreeing = equal | {key for key in shared if key in of_any_size}
        score = len(agreeing) / len(own.keys() | theirs.keys()), len(equal)
        if score > best_score:
            best, best_score = name, score
    return best


@functools.cache
def _registered_shapes() -> Dict[str, Tuple[Dict[str, torch.Size], Set[str], Tuple[str, ...]]]:
    """Return for each registered model its shapes, the names among them that depend on size or classes, and its buffers."""
    shapes = {}
    for name in timm.list_models("pola_*"):
        model: Any = timm.create_model(name, device="meta")
        of_any_size = {*model.table_grids(model.img_size), "head.weight", "head.bias"}
        shapes[name] = {key: value.shape for key, value in model.state_dict().items()}, of_any_size, model.recomputed
    return shapes
