import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.images import noise
from PIL import Image

from polaformer.data.transforms import channel_statistics, evaluation_crop, evaluation_transform, training_transform
from polaformer.recipe import DataConfig

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]


def test_evaluation_resizes_crops_the_centre_and_normalises():
    picture = noise(67, 41, 1)
    tensor = evaluation_transform(29, 3, MEAN, STD, "bilinear", 0.875)(picture)
    side = int(29 / 0.875)  # 33, of the short side
    resized = picture.resize((round(67 * side / 41 - 0.5), side), Image.Resampling.BILINEAR)
    left, top = round((resized.width - 29) / 2), round((side - 29) / 2)
    pixels = np.asarray(resized.crop((left, top, left + 29, top + 29)), dtype=np.float64) / 255.0
    expected = np.moveaxis((pixels - np.array(MEAN)) / np.array(STD), -1, 0)
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-5)


def test_evaluation_of_an_image_that_fits_changes_nothing():
    picture = noise(29, 29, 2).convert("L")
    tensor = evaluation_transform(29, 1, [0.0], [1.0], crop_pct=1.0)(picture)
    np.testing.assert_allclose(tensor.numpy()[0], np.asarray(picture) / 255.0, atol=1e-6)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("crop_pct", [0.7, 1.0])
def test_evaluation_crop_is_the_picture_that_is_normalised(mode, crop_pct):
    picture = noise(67, 41, 6).convert(mode)
    cropped = evaluation_crop(29, "nearest", crop_pct)(picture)
    channels = len(mode)
    tensor = evaluation_transform(29, channels, [0.0] * channels, [1.0] * channels, "nearest", crop_pct)(picture)
    assert (cropped.mode, cropped.size) == (mode, (29, 29))
    shown = np.asarray(cropped).reshape(29, 29, channels)
    np.testing.assert_allclose(255.0 * np.moveaxis(tensor.numpy(), 0, -1), shown, atol=1e-3)


@pytest.mark.parametrize("size", [(8, 8), (3, 97), (500, 31), (1, 1)])
@pytest.mark.parametrize("in_chans", [1, 3])
def test_any_image_size_gives_the_asked_one(size, in_chans):
    picture = noise(size[0], size[1], 3).convert("L" if in_chans == 1 else "RGB")
    config = DataConfig(img_size=33, in_chans=in_chans, reprob=1.0, vflip=0.5)
    for transform in (
        training_transform(config, MEAN[:in_chans], STD[:in_chans]),
        evaluation_transform(33, in_chans, MEAN[:in_chans], STD[:in_chans]),
    ):
        assert transform(picture).shape == (in_chans, 33, 33)


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "augmix-m3-w3", "original", "3a"])
@pytest.mark.parametrize("in_chans", [1, 3])
def test_policies_work_on_colour_and_grey(policy, in_chans):
    config = DataConfig(img_size=31, in_chans=in_chans, auto_augment=policy)
    transform = training_transform(config, MEAN[:in_chans], STD[:in_chans])
    picture = noise(43, 37, 4).convert("L" if in_chans == 1 else "RGB")
    for _ in range(30):
        tensor = transform(picture)
        assert tensor.shape == (in_chans, 31, 31)
        assert tensor.isfinite().all()


def test_flips_follow_the_config():
    plain = DataConfig(img_size=17, scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=0.0, color_jitter=None)
    picture = noise(17, 17, 5)
    upright = training_transform(plain, MEAN, STD)(picture)
    torch.testing.assert_close(training_transform(replace(plain, hflip=1.0), MEAN, STD)(picture), upright.flip(-1))
    torch.testing.assert_close(training_transform(replace(plain, vflip=1.0), MEAN, STD)(picture), upright.flip(-2))
    torch.testing.assert_close(evaluation_transform(17, 3, MEAN, STD, crop_pct=1.0)(picture), upright)


def test_transforms_pickle():
    for transform in (
        training_transform(DataConfig(auto_augment="rand-m9"), MEAN, STD),
        evaluation_transform(7, 3, MEAN, STD),
    ):
        assert pickle.loads(pickle.dumps(transform)) is not None


def test_channel_statistics():
    assert channel_statistics(None, MEAN, 3, "mean") == MEAN
    assert channel_statistics([0.1, 0.2, 0.3], MEAN, 3, "mean") == [0.1, 0.2, 0.3]
    assert channel_statistics(None, MEAN, 1, "mean") == pytest.approx([0.4])
    assert channel_statistics([0.13], MEAN, 1, "mean") == [0.13]
    with pytest.raises(ValueError, match=r"data.mean must have 1 numbers, one a channel, got \[0.1, 0.2, 0.3\]"):
        channel_statistics([0.1, 0.2, 0.3], MEAN, 1, "data.mean")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size": 0}, "img_size must be at least 1 pixel, got 0"),
        ({"in_chans": 4}, r"in_chans must be 1 \(grey\) or 3 \(RGB\), got 4"),
        ({"interpolation": "lanczos4"}, "interpolation must be one of bicubic, bilinear, nearest, got 'lanczos4'"),
        ({"scale": (0.5, 1.5)}, r"scale must be a rising range .* got \(0.5, 1.5\)"),
        ({"ratio": (2.0, 0.5)}, r"ratio must be a rising range .* got \(2.0, 0.5\)"),
        ({"hflip": 1.5}, "hflip must be a probability in 0..1, got 1.5"),
    ],
)
def test_training_arguments_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        training_transform(replace(DataConfig(), **changes), MEAN, STD)


def test_evaluation_arguments_are_checked():
    with pytest.raises(ValueError, match=r"crop_pct must be above 0 and at most 1, got 1.5"):
        evaluation_transform(7, 3, MEAN, STD, crop_pct=1.5)
    with pytest.raises(ValueError, match="mean and std must have 3 numbers, std above 0"):
        evaluation_transform(7, 3, MEAN, [0.1, 0.0, 0.1])


@pytest.mark.parametrize("policy", ["nonsense", "rand-m9-zz3"])
def test_unknown_auto_augment_is_named(policy):
    with pytest.raises(ValueError, match=f"auto_augment must be a timm policy .*, got '{policy}'"):
        training_transform(DataConfig(auto_augment=policy), MEAN, STD)
