"""From a picture to the normalised tensor the network is fed, with timm's transforms.

One function makes the evaluation transform; validation, testing and prediction all call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from PIL import Image
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from ..recipe import DataConfig

INTERPOLATIONS = ("bicubic", "bilinear", "nearest")

Transform = Callable[[Image.Image], Tensor]


@dataclass(frozen=True)
class Preprocessing:
    """What turns a picture into the network's input; stored beside the weights.

    Args:
        img_size: side of the square, pixels.
        in_chans: 1 (grey) or 3 (RGB).
        mean: per channel, of values in [0, 1].
        std: per channel, of values in [0, 1].
        interpolation: resize filter.
        crop_pct: share of the resized short side that the centre crop keeps.
    """

    img_size: int
    in_chans: int
    mean: list[float]
    std: list[float]
    interpolation: str
    crop_pct: float


def evaluation_transform(
    img_size: int,
    in_chans: int,
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str = "bicubic",
    crop_pct: float = 0.875,
) -> Transform:
    """Resize the short side to img_size / crop_pct, crop the centre, normalise.

    y = (x / 255 - mean) / std

    Args:
        img_size: side of the square, pixels.
        in_chans: 1 for pictures in mode "L", 3 for "RGB".
        mean: per channel (in_chans).
        std: per channel (in_chans).
        interpolation: bicubic, bilinear or nearest.
        crop_pct: in (0, 1].

    Returns:
        Function from a picture of any size to a float32 tensor (in_chans, img_size, img_size).

    Raises:
        ValueError: an argument out of range.
    """
    _check(img_size, in_chans, mean, std, interpolation)
    if not 0.0 < crop_pct <= 1.0:
        raise ValueError(f"crop_pct must be above 0 and at most 1, got {crop_pct}")
    transform = create_transform(
        input_size=(in_chans, img_size, img_size),
        is_training=False,
        interpolation=interpolation,
        mean=tuple(mean),
        std=tuple(std),
        crop_pct=crop_pct,
    )
    return cast(Transform, transform)


def evaluation_crop(
    img_size: int, interpolation: str = "bicubic", crop_pct: float = 0.875
) -> Callable[[Image.Image], Image.Image]:
    """The picture that `evaluation_transform` normalises: what the network sees, for eyes.

    Args:
        img_size: side of the square, pixels.
        interpolation: bicubic, bilinear or nearest.
        crop_pct: in (0, 1].

    Returns:
        Function from a picture in mode "L" or "RGB", of any size, to one of that mode, img_size x img_size.
    """
    transform = cast(
        Transform,
        create_transform(img_size, is_training=False, interpolation=interpolation, crop_pct=crop_pct, normalize=False),
    )
    return lambda picture: to_pil_image(transform(picture))


def training_transform(config: DataConfig, mean: Sequence[float], std: Sequence[float]) -> Transform:
    """Random crop, flips, colour changes, normalisation and erasing, as the config says.

    Args:
        config: img_size, in_chans, interpolation and the keys of augmentation.
        mean: per channel (in_chans).
        std: per channel (in_chans).

    Returns:
        Function from a picture of any size to a float32 tensor (in_chans, img_size, img_size). It draws from the global
        generators of `random`, numpy and torch.

    Raises:
        ValueError: an argument out of range.
    """
    _check(config.img_size, config.in_chans, mean, std, config.interpolation)
    for key in ("scale", "ratio"):
        low, high = getattr(config, key)
        if not 0.0 < low <= high or (key == "scale" and high > 1.0):
            raise ValueError(f"{key} must be a rising range of positive numbers, scale at most 1, got {(low, high)}")
    for key in ("hflip", "vflip", "reprob"):
        if not 0.0 <= getattr(config, key) <= 1.0:
            raise ValueError(f"{key} must be a probability in 0..1, got {getattr(config, key)}")
    _check_auto_augment(config.auto_augment)
    transform = create_transform(
        input_size=(config.in_chans, config.img_size, config.img_size),
        is_training=True,
        scale=config.scale,
        ratio=config.ratio,
        hflip=config.hflip,
        vflip=config.vflip,
        color_jitter=config.color_jitter or 0.0,
        auto_augment=config.auto_augment,
        interpolation=config.interpolation,
        mean=tuple(mean),
        std=tuple(std),
        re_prob=config.reprob,
        re_mode=config.remode,
    )
    return cast(Transform, transform)


def channel_statistics(values: Sequence[float] | None, models: Sequence[float], in_chans: int, key: str) -> list[float]:
    """Mean or deviation per channel: the given one, else the model's; averaged for a grey input of an RGB model.

    Args:
        values: what the user gave, or null.
        models: the model's own.
        in_chans: channels wanted.
        key: name for the error.

    Returns:
        in_chans numbers.

    Raises:
        ValueError: neither has in_chans numbers.
    """
    chosen = list(models if values is None else values)
    if values is None and in_chans == 1:
        return [sum(chosen) / len(chosen)]
    if len(chosen) != in_chans:
        raise ValueError(f"{key} must have {in_chans} numbers, one a channel, got {chosen}")
    return chosen


def _check_auto_augment(policy: str | None) -> None:
    if policy is not None:
        try:
            create_transform(input_size=32, is_training=True, auto_augment=policy)
        except (AssertionError, KeyError, ValueError):  # timm asserts the words of a policy and looks up its numbers
            raise ValueError(
                f"auto_augment must be a timm policy such as rand-m9-mstd0.5-inc1, augmix-m3 or original, got {policy!r}"
            ) from None


def _check(img_size: int, in_chans: int, mean: Sequence[float], std: Sequence[float], interpolation: str) -> None:
    if img_size < 1:
        raise ValueError(f"img_size must be at least 1 pixel, got {img_size}")
    if in_chans not in (1, 3):
        raise ValueError(f"in_chans must be 1 (grey) or 3 (RGB), got {in_chans}")
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}")
    if len(mean) != in_chans or len(std) != in_chans or min(std) <= 0.0:
        raise ValueError(f"mean and std must have {in_chans} numbers, std above 0, got {list(mean)} and {list(std)}")
