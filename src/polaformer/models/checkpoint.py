"""Reading checkpoints: released ones, plain state dicts, timm's and our own, without ever executing what a file says.

A file is read in full, brought to the model's names and sizes and compared with the model before the first tensor is
copied, so a model is either loaded or untouched.
"""

import functools
import logging
import pickle
import re
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple, Union

import safetensors
import safetensors.torch
import timm
import torch
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from ._tables import fit_table, grid_of

if TYPE_CHECKING:
    from ._backbone import Backbone

_logger = logging.getLogger(__name__)

_PREFIXES = ("module.", "_orig_mod.", "model.")  # DistributedDataParallel, torch.compile, training modules
_CONTAINERS = ("model", "state_dict", "model_state_dict", "module")  # where checkpoints keep the weights


class _Ignored:
    """Stands for an object beside the weights: takes whatever the file says about it, and does nothing."""

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _IgnoredMapping:
    """Stands for a mapping beside the weights. PyTorch's reader fills only dicts of its own, so it is made one of those."""

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


# Types that training scripts leave beside the weights: arguments, configs, paths, numpy scalars of a best score.
# None of them is imported: each becomes one of the above.
_HARMLESS = {
    "yacs.config.CfgNode": _IgnoredMapping,
    "easydict.EasyDict": _IgnoredMapping,
    **dict.fromkeys(
        (
            "argparse.Namespace",
            "types.SimpleNamespace",
            *(f"pathlib.{kind}" for kind in ("Path", "PosixPath", "WindowsPath")),
            *(f"pathlib._local.{kind}" for kind in ("Path", "PosixPath", "WindowsPath")),
            "numpy.core.multiarray.scalar",
            "numpy._core.multiarray.scalar",
            "numpy.dtype",
            *(f"numpy.dtypes.{kind}DType" for kind in ("Bool", "Float16", "Float32", "Float64", "Int32", "Int64")),
        ),
        _Ignored,
    ),
}


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


def read_state_dict(path: Union[str, Path]) -> Dict[str, Tensor]:
    """Read the weights of a checkpoint file on the CPU.

    Args:
        path: A safetensors file, or one written by torch.save: a state dict, or a dict that holds one as 'model',
            'state_dict', 'model_state_dict' or 'module'. Prefixes 'module.', '_orig_mod.' and 'model.', nested in any
            order, are removed.

    Returns:
        Tensors by name.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is truncated, no checkpoint, or refers to types that are not known to be harmless.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    with path.open("rb") as file:
        head = file.read(9)
    # A safetensors file opens with the length of its JSON header (8 bytes) and that header.
    content = _read_safetensors(path) if head[8:] == b"{" else _read_pickle(path)
    return strip_prefixes(_find_state_dict(content, path))


def _read_safetensors(path: Path) -> Dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _read_pickle(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([(stub, name) for name, stub in _HARMLESS.items()]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        if named:
            raise ValueError(
                f"{path} refers to {named[1]}, which a checkpoint has no need of and could run code with: not loaded"
            ) from None
        raise ValueError(f"{path} is no PyTorch checkpoint, or damaged") from None
    except (RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, struct.error) as error:
        # What the reader stumbles over depends on where the bytes stop to make sense.
        reason = next(iter(str(error).splitlines()), "it ends too early")
        raise ValueError(f"{path} is no PyTorch checkpoint, or damaged: {reason}") from None


def _find_state_dict(content: Any, path: Path) -> Dict[str, Tensor]:
    for container in _CONTAINERS:
        if isinstance(content, dict) and isinstance(content.get(container), dict):
            content = content[container]
            break
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} holds no state dict: neither at its top nor under {', '.join(_CONTAINERS)}")
    return dict(content)


def strip_prefixes(state_dict: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Remove the prefixes that wrappers put before every name, nested in any order."""
    while prefix := next((p for p in _PREFIXES if state_dict and all(n.startswith(p) for n in state_dict)), None):
        state_dict = {name[len(prefix) :]: tensor for name, tensor in state_dict.items()}
    return state_dict


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
        path: Checkpoint file, see `read_state_dict`.
        img_size: Size (height, width) in pixels the checkpoint was trained at; only needed if it is not square.

    Returns:
        What was loaded, resized, rebuilt and skipped.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file cannot be read, or names or shapes differ from the model's. The model is unchanged.
    """
    backbone: Any = model.model if isinstance(model, FeatureGetterNet) else model
    if not hasattr(backbone, "table_grids"):
        raise ValueError(f"model must be a backbone of this package, got {type(backbone).__name__}")
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
    differences = [
        f"{what} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for what, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", misshapen))
        if names
    ]
    belongs_to = identify(source)
    if belongs_to is None:
        hint = "it fits no registered model"
    elif belongs_to == name:
        hint = f"it is a {name} checkpoint, but incomplete or of other arguments"
    else:
        hint = f"it belongs to {belongs_to}: use timm.create_model({belongs_to!r})"
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
