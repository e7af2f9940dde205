"""Class names and probabilities for image files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import PIL.Image
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from polaformer.data.images import ImageError, is_image_name, load_image
from polaformer.data.listing import walk_files
from polaformer.data.transforms import evaluation_crop, evaluation_transform
from polaformer.models.weights import WeightsInfo

from .networks import describe_classifier, load_classifier


@dataclass(frozen=True)
class Prediction:
    """What a network says of one file, or why it says nothing."""

    path: str
    """The file."""
    class_name: str | None = None
    """Most probable class; None where there is an error."""
    probability: float | None = None
    """Its probability, 0 to 1."""
    probabilities: dict[str, float] = field(default_factory=dict)
    """The top_k classes with their probabilities, highest first."""
    error: str | None = None
    """Why there is no answer: the file could not be read, or the network gave NaN."""


def predict_images(
    checkpoint: str | Path,
    paths: Iterable[str | Path],
    *,
    top_k: int = 5,
    batch_size: int = 32,
    num_workers: int = 0,
    device: str | torch.device | None = None,
) -> Iterator[Prediction]:
    """Classify image files, in the order given; folders are searched for images, in order of their names.

    Links to folders are followed. A file that cannot be read, or for which the network's output is not finite, gives an
    entry with its error and stops nothing.

    Args:
        checkpoint: weights file, .ckpt file, or run folder.
        paths: image files and folders.
        top_k: number of classes in `Prediction.probabilities`, at most all.
        batch_size: images run at once.
        num_workers: processes that read files; 0 reads in this one.
        device: where to run; None takes a GPU if there is one.

    Yields:
        One prediction a file; one with an error for a folder without images.

    Raises:
        ValueError: top_k or batch_size is below 1, the checkpoint is not a classifier of ours, or a folder cannot be
            listed.
        FileNotFoundError: there is no such checkpoint.
    """
    for name, value in (("top_k", top_k), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    model, info = load_classifier(checkpoint)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    files = list(find_images(paths))
    return _predict(model.to(device), info, files, top_k, batch_size, num_workers, device)


def seen_pictures(checkpoint: str | Path, paths: Iterable[str | Path]) -> Iterator[PIL.Image.Image]:
    """Yield what a network sees of image files: each resized and cropped to its square, grey where it sees grey.

    Args:
        checkpoint: weights file, .ckpt file, or run folder.
        paths: files that can be read.

    Yields:
        One picture a file, in mode "RGB" or "L".

    Raises:
        ValueError: a file cannot be read, or the checkpoint is not a classifier of ours.
        FileNotFoundError: there is no such checkpoint.
    """
    info = describe_classifier(checkpoint)
    crop = evaluation_crop(info.img_size, info.interpolation, info.crop_pct)
    for path in paths:
        yield crop(load_image(path, info.in_chans))


def find_images(paths: Iterable[str | Path]) -> Iterator[str]:
    """Yield files as they are and folders as the images in and below them; a folder without images as itself."""
    for path in paths:
        names = walk_files(path) if os.path.isdir(path) else ()
        images = sorted(name for name in names if is_image_name(os.path.basename(name)))
        yield from [os.path.join(path, *name.split("/")) for name in images] or [str(path)]


class _Files(Dataset[Tensor | str]):
    """Image tensors by number, or the reason there is none."""

    def __init__(self, files: Sequence[str], info: WeightsInfo) -> None:
        self._files = files
        self._in_chans = info.in_chans
        self._transform = evaluation_transform(
            info.img_size, info.in_chans, info.mean, info.std, info.interpolation, info.crop_pct
        )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Tensor | str:
        path = self._files[index]
        if os.path.isdir(path):
            return "there are no images in this folder"
        try:
            return self._transform(load_image(path, self._in_chans))
        except ImageError as error:
            return error.reason


def _predict(
    model: nn.Module,
    info: WeightsInfo,
    files: Sequence[str],
    top_k: int,
    batch_size: int,
    num_workers: int,
    device: torch.device,
) -> Iterator[Prediction]:
    loader = DataLoader(_Files(files, info), batch_size, num_workers=num_workers, collate_fn=list)
    numbers = iter(range(len(files)))
    for items in loader:
        images = [item for item in items if isinstance(item, Tensor)]
        answers = iter(_classify(model, torch.stack(images).to(device), info.class_names, top_k) if images else ())
        for item in items:
            path = files[next(numbers)]
            if isinstance(item, str):
                yield Prediction(path, error=item)
            else:
                probabilities = next(answers)
                best = next(iter(probabilities))
                if math.isfinite(probabilities[best]):
                    yield Prediction(path, best, probabilities[best], probabilities)
                else:  # one NaN or infinity among a softmax's inputs makes all its outputs NaN
                    yield Prediction(path, error="the model's output is not finite")


@torch.inference_mode()
def _classify(model: nn.Module, images: Tensor, class_names: Sequence[str], top_k: int) -> list[dict[str, float]]:
    """The top_k class names and probabilities of each image, highest first."""
    probabilities = model(images).float().softmax(1)
    values, classes = probabilities.topk(min(top_k, len(class_names)), dim=1)
    return [
        {class_names[int(index)]: value for index, value in zip(row_classes, row_values)}
        for row_classes, row_values in zip(classes.tolist(), values.tolist())
    ]
