"""Our own weights file: a safetensors file that also says which model it is, of what classes, and how images are prepared."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, Tuple, Union

import safetensors
import safetensors.torch
import timm
from torch import nn

from .atomic import atomic_write

_KEY = "polaformer"  # the metadata entry


@dataclass(frozen=True)
class WeightsInfo:
    """What has to be known beside the weights to use a classifier on images."""

    model_name: str  # as registered with timm
    model_args: Dict[str, Any]  # further arguments of timm.create_model, JSON values
    class_names: List[str]  # in the order of the outputs
    img_size: int  # side of the images at evaluation, in pixels
    in_chans: int
    mean: List[float]  # one a channel, of pixel values in [0, 1]
    std: List[float]
    interpolation: str  # of the resize before the crop
    crop_pct: float  # part of the resized image's side that the centre crop keeps
    version: str  # of polaformer


def save_weights(path: Union[str, Path], model: nn.Module, info: WeightsInfo) -> None:
    """Write a model's weights and what is needed to use them, atomically.

    Args:
        path: File to write, usually *.safetensors.
        model: The model; one built as `info` says.
        info: Model, classes and preprocessing.

    Raises:
        ValueError: info.model_args holds a value that JSON cannot.
    """
    try:
        metadata = {_KEY: json.dumps(asdict(info)), "format": "pt"}
    except TypeError as error:
        raise ValueError(f"info.model_args must hold JSON values only: {error}") from None
    state_dict = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic_write(path) as temporary:
        safetensors.torch.save_file(state_dict, temporary, metadata)


def load_weights(path: Union[str, Path]) -> Tuple[nn.Module, WeightsInfo]:
    """Rebuild a model from a file written by `save_weights`.

    Args:
        path: The weights file.

    Returns:
        The model on the CPU, in evaluation mode, and the information stored beside it.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, or was not written by `save_weights`.
    """
    path = Path(path)
    info = read_info(path)
    args = {"num_classes": len(info.class_names), "in_chans": info.in_chans, **info.model_args}
    model = timm.create_model(info.model_name, **args)
    model.load_state_dict(safetensors.torch.load_file(path))
    return model.eval(), info


def read_info(path: Union[str, Path]) -> WeightsInfo:
    """Read only the information of a file written by `save_weights`; raises what `load_weights` raises."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no weights file at {path}")
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file, or damaged: {error}") from None
    if _KEY not in metadata:
        raise ValueError(
            f"{path} does not say which model it holds: load it with load_checkpoint into a model you create"
        )
    stored = json.loads(metadata[_KEY])
    return WeightsInfo(**{entry.name: stored[entry.name] for entry in fields(WeightsInfo)})
