"""`polaformer predict`: the most probable classes of images, as a table, CSV, JSON or picture."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from polaformer.data.images import load_image
from polaformer.data.names import printable
from polaformer.models.atomic import atomic_write
from polaformer.runs import Prediction, predict_images
from polaformer_cli.console import complain, say

from .picture import Tile, draw_tiles

MOST_TILES = 64
"""Images a picture shows at most; more would be too small to see."""

THUMBNAIL_SIDE = 256
"""Pixels; enough for a tile."""


def run(args: argparse.Namespace) -> int:
    """Classify the images; exit status 1 where a file has no answer."""
    for option, path in (("--output", args.output), ("--picture", args.picture)):
        if path is not None:
            check_target(option, path)
    predictions = predict_images(args.checkpoint, args.images, top_k=args.top, batch_size=args.batch_size)
    seen: list[Prediction] = []
    form = json_lines if args.json else csv_lines if args.csv else table_lines
    lines = form(keep(predictions, seen))
    if args.output is None:
        for line in lines:
            say(line)
    else:
        with atomic_write(Path(args.output)) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    readable = [prediction for prediction in seen if prediction.error is None]
    if args.picture is not None:
        draw_predictions(Path(args.picture), readable)
    return 0 if len(readable) == len(seen) else 1


def check_target(option: str, path: str) -> None:
    """Raise unless a file can be put there: better now than after hours of predicting."""
    folder = os.path.dirname(path) or "."
    taken = path == "" or (os.path.exists(path) and not os.path.isfile(path))  # a folder, pipe or device
    if taken or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ValueError(f"{option} must be a file in an existing folder that can be written to, got {path!r}")


def keep(predictions: Iterable[Prediction], seen: list[Prediction]) -> Iterator[Prediction]:
    """Pass predictions on as they come, naming failures on stderr and keeping all for later."""
    for prediction in predictions:
        seen.append(prediction)
        if prediction.error is not None:
            complain("polaformer predict", f"warning: {printable(prediction.path)}: {prediction.error}")
        yield prediction


def table_lines(predictions: Iterable[Prediction]) -> Iterator[str]:
    """The file's name, and below it a line for each class; nothing for files that could not be read."""
    for prediction in predictions:
        if prediction.error is None:
            yield printable(prediction.path)
            for name, probability in prediction.probabilities.items():
                yield f"  {probability:6.1%}  {printable(name)}"


def csv_lines(predictions: Iterable[Prediction]) -> Iterator[str]:
    """A row for each class of each image that could be read."""
    yield "path,rank,class,probability"
    for prediction in predictions:
        path = printable(prediction.path)
        for rank, (name, probability) in enumerate(prediction.probabilities.items(), start=1):
            row = io.StringIO()
            csv.writer(row, lineterminator="").writerow([path, rank, printable(name), f"{probability:.6f}"])
            yield row.getvalue()


def json_lines(predictions: Iterable[Prediction]) -> Iterator[str]:
    """One JSON list with an entry an image: its classes, or its error; in ASCII, which can hold any file's name."""
    entries = [
        {"path": prediction.path, "error": prediction.error}
        if prediction.error is not None
        else {
            "path": prediction.path,
            "predictions": [
                {"class": name, "probability": probability} for name, probability in prediction.probabilities.items()
            ],
        }
        for prediction in predictions
    ]
    yield json.dumps(entries, indent=2)


def draw_predictions(path: Path, predictions: list[Prediction]) -> None:
    """Draw the first images with their most probable class."""
    if not predictions:
        raise ValueError("--picture must have an image to draw, but none could be read")
    shown = predictions[:MOST_TILES]
    of_all = f" (the first {len(shown)} of {len(predictions)})" if len(shown) < len(predictions) else ""
    draw_tiles(path, [make_tile(prediction) for prediction in shown], title=f"Most probable class{of_all}")


def make_tile(prediction: Prediction) -> Tile:
    """The picture's tile of one image that could be read."""
    assert prediction.class_name is not None
    assert prediction.probability is not None
    image = load_image(prediction.path)
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    return Tile(image, prediction.class_name, prediction.probability)
