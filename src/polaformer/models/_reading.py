"""Reading the weights in a file, whoever wrote it, without ever executing what the file says."""

import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, Union

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .atomic import check_archive

BEST_WEIGHTS = "best.safetensors"  # in a run folder
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


def checkpoint_file(path: Union[str, Path]) -> Path:
    """Return the file that `path` means: itself, or the best weights of a run folder; FileNotFoundError if there is none."""
    path = Path(path)
    if path.is_dir():
        if not (path / BEST_WEIGHTS).is_file():
            raise FileNotFoundError(f"no checkpoint at {path}: a folder without {BEST_WEIGHTS}, so not that of a run")
        return path / BEST_WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    return path


def read_state_dict(path: Union[str, Path]) -> Dict[str, Tensor]:
    """Read the weights of a checkpoint file on the CPU.

    Args:
        path: A safetensors file, or one written by torch.save: a state dict, or a dict that holds one as 'model',
            'state_dict', 'model_state_dict' or 'module'. A run folder stands for its best weights. Prefixes 'module.', '_orig_mod.' and 'model.', nested in any
            order, are removed.

    Returns:
        Tensors by name.

    Raises:
        FileNotFoundError: no such file, or a folder without best weights.
        ValueError: the file is truncated, no checkpoint, or refers to types that are not known to be harmless.
    """
    path = checkpoint_file(path)
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
        if zipfile.is_zipfile(path):  # older checkpoints are plain pickles
            check_archive(path)
        with torch.serialization.safe_globals([(stub, name) for name, stub in _HARMLESS.items()]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        if named:
            raise ValueError(
                f"{path} refers to {named[1]}, which a checkpoint has no need of and could run code with: not loaded"
            ) from None
        raise ValueError(f"{path} is no PyTorch checkpoint, or damaged") from None
    except (
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        struct.error,
        zipfile.BadZipFile,
    ) as error:
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
