import copy
import json
import os

import numpy as np
import pytest
import timm
import torch
from helpers.tiny import write_images

from polaformer.data.images import load_image
from polaformer.data.transforms import evaluation_transform
from polaformer.models.weights import WeightsInfo, save_weights
from polaformer.runs import predict_images
from polaformer.runs.predict import find_images, seen_pictures

NAMES = ["zebra", "ant", "moth", "bee", "yak", "cod", "eel"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(6)
    model = timm.create_model("test_vit", num_classes=7, img_size=32)
    info = WeightsInfo(
        "test_vit", {"img_size": 32}, NAMES, 32, 3, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], "bicubic", 0.9, "0"
    )
    path = tmp_path_factory.mktemp("weights") / "best.safetensors"
    save_weights(path, model, info)
    return path, model.eval(), info


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images", 3, ("b", "a"))


def test_probabilities_are_the_networks_own(weights, images):
    path, model, info = weights
    files = sorted(images.rglob("*.png"))
    transform = evaluation_transform(32, 3, info.mean, info.std, "bicubic", 0.9)
    with torch.no_grad():
        expected = torch.stack([model(transform(load_image(file))[None])[0].softmax(0) for file in files])
    predictions = list(predict_images(path, files, top_k=99, batch_size=4, device="cpu"))
    assert [prediction.path for prediction in predictions] == [str(file) for file in files]
    for prediction, row in zip(predictions, expected):
        torch.testing.assert_close(torch.tensor([prediction.probabilities[name] for name in NAMES]), row)
        assert prediction.class_name == NAMES[int(row.argmax())] == next(iter(prediction.probabilities))
        assert prediction.probability == max(prediction.probabilities.values())
        assert list(prediction.probabilities.values()) == sorted(prediction.probabilities.values(), reverse=True)


def test_bad_files_are_entries_of_their_own_at_their_place(weights, images, tmp_path):
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    good = images / "a" / "000.png"
    paths = [good, tmp_path / "empty.jpg", tmp_path / "missing.png", good, tmp_path / "nothing", good]
    predictions = list(predict_images(weights[0], paths, top_k=2, batch_size=3, device="cpu"))
    assert [prediction.path for prediction in predictions] == [str(path) for path in paths]
    assert [prediction.error is None for prediction in predictions] == [True, False, False, True, False, True]
    assert predictions[4].error == "there are no images in this folder"
    for prediction in predictions:
        if prediction.error is not None:
            assert (prediction.class_name, prediction.probability, prediction.probabilities) == (None, None, {})
        else:
            assert len(prediction.probabilities) == 2
            assert prediction.probability == pytest.approx(predictions[0].probability)
        json.dumps(prediction.__dict__)


def test_seen_pictures_are_what_the_network_is_fed(weights, images):
    path, _, info = weights
    files = sorted(images.rglob("*.png"))
    transform = evaluation_transform(32, 3, info.mean, info.std, "bicubic", 0.9)
    pictures = list(seen_pictures(path, files))
    assert len(pictures) == len(files)
    for picture, file in zip(pictures, files):
        unit = torch.from_numpy(np.asarray(picture) / 255.0).movedim(-1, 0).float()
        normalised = (unit - torch.tensor(info.mean)[:, None, None]) / torch.tensor(info.std)[:, None, None]
        torch.testing.assert_close(normalised, transform(load_image(file)))


def test_folders_are_searched_in_the_order_of_names(images):
    (images / ".hidden").mkdir()
    (images / ".hidden" / "x.png").write_bytes(b"")
    (images / "a" / "notes.txt").write_text("")
    found = list(find_images([images / "b" / "002.png", images]))
    expected = ["b/002.png", *(f"{name}/00{number}.png" for name in "ab" for number in range(3))]
    assert found == [str(images / name) for name in expected]


def test_linked_folders_are_searched_once_around(images, tmp_path):
    os.symlink(write_images(tmp_path / "elsewhere", 1, ("c",)) / "c", images / "linked")
    os.symlink(images, images / "linked" / "back")
    found = [name.removeprefix(f"{images}/") for name in find_images([images])]
    assert found == [*(f"{name}/00{number}.png" for name in "ab" for number in range(3)), "linked/000.png"]


def test_output_that_is_not_finite_is_an_error(weights, images, tmp_path):
    _, model, info = weights
    broken = copy.deepcopy(model)
    torch.nn.init.constant_(broken.get_classifier().bias, float("nan"))
    save_weights(tmp_path / "broken.safetensors", broken, info)
    (prediction,) = predict_images(tmp_path / "broken.safetensors", [images / "a" / "000.png"], device="cpu")
    assert (prediction.class_name, prediction.error) == (None, "the model's output is not finite")


def test_wrong_arguments_are_named(weights, tmp_path):
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        predict_images(weights[0], [], top_k=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got -1"):
        predict_images(weights[0], [], batch_size=-1)
    with pytest.raises(FileNotFoundError):
        predict_images(tmp_path / "none.safetensors", [])
    with pytest.raises(ValueError, match="must be an existing file"):
        predict_images(tmp_path / "none.ckpt", [])
    assert list(predict_images(weights[0], [])) == []
