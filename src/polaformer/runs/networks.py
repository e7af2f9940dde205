"""The network of a recipe, and what has to be known to build it and feed it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

import polaformer
from polaformer.data.module import ClassificationDataModule
from polaformer.models.checkpoint import load_checkpoint
from polaformer.models.weights import WeightsInfo, load_weights, read_info
from polaformer.recipe import ModelConfig

from .checkpoints import STATE_KEY, RunState, read_checkpoint
from .folder import RunFolder

OF_OTHER_KEYS = {
    "num_classes": "the number of class folders",
    "in_chans": "data.in_chans",
    "img_size": "data.img_size",
    "features_only": "false for a classifier",
    "pretrained": "model.pretrained",
    "checkpoint_path": "model.checkpoint",
    "drop_path_rate": "model.drop_path_rate",
}
"""Constructor arguments that model.args may not hold, and what says them instead."""


def probe_network(config: ModelConfig, in_chans: int = 3) -> nn.Module:
    """Build a recipe's network without memory for its weights, to see whether that can be done.

    Args:
        config: the recipe's model section.
        in_chans: channels of the images.

    Returns:
        The network on the meta device, with its own number of classes.

    Raises:
        ValueError: there is no such model, or it does not take `model.args`.
    """
    for key in OF_OTHER_KEYS.keys() & config.args.keys():
        raise ValueError(f"model.args must not hold {key}, which is {OF_OTHER_KEYS[key]}, got {config.args}")
    if not timm.is_model(config.name):
        raise ValueError(f"model.name must be a timm model, got {config.name!r}")
    try:
        with torch.device("meta"):
            return timm.create_model(config.name, in_chans=in_chans, **config.args)
    except Exception as error:  # a model may stumble over a wrong argument anywhere
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"model.args must be arguments of {config.name}, got {config.args}: {reason}") from error


def describe_network(config: ModelConfig, data: ClassificationDataModule) -> WeightsInfo:
    """Collect what a weights file says about a network and its images.

    Args:
        config: the recipe's model section.
        data: the images, set up.

    Returns:
        Model name and arguments, class names in the order of the outputs, and preprocessing. Networks that are built
        for an image size (those of this package, vision transformers) get the size of the images.

    Raises:
        ValueError: the model does not take `model.args`.
    """
    arguments: dict[str, Any] = dict(config.args)
    if hasattr(probe_network(config, data.preprocessing.in_chans), "set_input_size"):
        arguments.setdefault("img_size", data.preprocessing.img_size)
    preprocessing = data.preprocessing
    return WeightsInfo(
        model_name=config.name,
        model_args=arguments,
        class_names=list(data.class_names),
        img_size=preprocessing.img_size,
        in_chans=preprocessing.in_chans,
        mean=list(preprocessing.mean),
        std=list(preprocessing.std),
        interpolation=preprocessing.interpolation,
        crop_pct=preprocessing.crop_pct,
        version=polaformer.__version__,
    )


def build_network(config: ModelConfig, info: WeightsInfo, *, initial_weights: bool) -> nn.Module:
    """Build the network of a recipe for training.

    Args:
        config: the recipe's model section.
        info: what `describe_network` says of it.
        initial_weights: load `config.checkpoint` or the published weights; a resumed run has its own.

    Returns:
        The network, in training mode.

    Raises:
        ValueError: the checkpoint does not fit.
        FileNotFoundError: there is no such checkpoint.
    """
    model: Any = timm.create_model(
        config.name,
        pretrained=config.pretrained and initial_weights,
        num_classes=len(info.class_names),
        in_chans=info.in_chans,
        drop_path_rate=config.drop_path_rate,  # timm leaves out what is None
        **info.model_args,
    )
    if config.checkpoint and initial_weights:
        load_checkpoint(model, config.checkpoint)
    if config.grad_checkpointing:
        model.set_grad_checkpointing(True)
    return model


def load_classifier(checkpoint: str | Path) -> tuple[nn.Module, WeightsInfo]:
    """Load a trained network from any file a run leaves behind.

    Args:
        checkpoint: best.safetensors or last.safetensors, best.ckpt or last.ckpt, or the run folder (its best weights).

    Returns:
        The network in evaluation mode on the CPU, with the weights that were scored (the average, where there is one),
        and what is known of its classes and images.

    Raises:
        FileNotFoundError: there is no such weights file.
        ValueError: the file is none that a run leaves behind, or is damaged.
    """
    path = classifier_file(checkpoint)
    if path.suffix == ".safetensors":
        return load_weights(path)
    content = read_checkpoint(path)
    state = RunState.from_dict(content[STATE_KEY])
    model = timm.create_model(
        state.info.model_name,
        num_classes=len(state.info.class_names),
        in_chans=state.info.in_chans,
        **state.info.model_args,
    )
    prefix = "model."
    weights = {name[len(prefix) :]: value for name, value in content["state_dict"].items() if name.startswith(prefix)}
    model.load_state_dict(weights)
    return model.eval(), state.info


def describe_classifier(checkpoint: str | Path) -> WeightsInfo:
    """What `load_classifier` says of a trained network's classes and images, without building the network."""
    path = classifier_file(checkpoint)
    if path.suffix == ".safetensors":
        return read_info(path)
    return RunState.from_dict(read_checkpoint(path)[STATE_KEY]).info


def classifier_file(checkpoint: str | Path) -> Path:
    """The file of a trained network: the one given, or the best weights of a run folder; raises as `load_classifier`."""
    path = Path(checkpoint)
    if path.is_dir():
        path = RunFolder(path).best_weights
        if not path.is_file():
            raise FileNotFoundError(f"checkpoint must be a run folder with best.safetensors in it, got {checkpoint}")
    if path.suffix not in (".safetensors", ".ckpt"):
        raise ValueError(
            f"checkpoint must be a run folder, or a .safetensors or .ckpt file of one, got {path}; other weights can be "
            "what a run starts from (model.checkpoint)"
        )
    return path
