"""Our own weights file: a safetensors file that also says which model it is, of what classes, and how images are prepared."""

import json
import textwrap
from dataclasses import Field, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, Tuple, Union, get_origin

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
        ValueError: the file is damaged, was not written by `save_weights`, or names a model that cannot be built or has
            other weights.
    """
    path = Path(path)
    info = read_info(path)
    if not timm.is_model(info.model_name):  # timm would look for other names on the network
        raise ValueError(f"{path} names a model that is not registered with timm: {info.model_name!r}")
    args = {"num_classes": len(info.class_names), "in_chans": info.in_chans, **info.model_args}
    try:
        model = timm.create_model(info.model_name, **args)
    except Exception as error:  # a model may stumble over a wrong argument anywhere
        raise ValueError(f"{path} names a model that cannot be built, {info.model_name} of {args}: {error}") from error
    try:
        model.load_state_dict(safetensors.torch.load_file(path))
    except RuntimeError as error:
        reason = textwrap.shorten(str(error), 300)
        raise ValueError(
            f"{path} holds other weights than those of {info.model_name}, which it names: {reason}"
        ) from None
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
    try:
        stored = json.loads(metadata[_KEY])
    except ValueError as error:
        raise ValueError(f"{path} describes its model in what is no JSON: {error}") from None
    return WeightsInfo(**{entry.name: _value_of(entry, stored, path) for entry in fields(WeightsInfo)})


def _value_of(entry: "Field[Any]", stored: Any, path: Path) -> Any:
    """Return what the file says of an entry; ValueError unless it is there and of its type."""
    if not isinstance(stored, dict) or entry.name not in stored:
        raise ValueError(f"{path} does not say the {entry.name} of its model")
    value = stored[entry.name]
    kind: Any = get_origin(entry.type) or entry.type
    if not isinstance(value, (int, float) if kind is float else kind):
        raise ValueError(f"{path} must hold {entry.name} as {kind.__name__}, got {value!r}")
    return value
