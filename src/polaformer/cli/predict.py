"""`polaformer predict`: the most probable classes of images, as a table, CSV, JSON or picture."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import PIL.Image

from polaformer.data.names import printable
from polaformer.models.atomic import atomic_write
from polaformer.runs import Prediction, predict_images
from polaformer.runs.predict import seen_pictures
from polaformer_cli.console import complain, say

from .messages import check_target
from .picture import Tile, draw_tiles

MOST_TILES = 64
"""Images a picture shows at most; more would be too small to see."""


def run(args: argparse.Namespace) -> int:
    """Classify the images; exit status 1 where a file has no answer."""
    for option, path in (("--output", args.output), ("--picture", args.picture)):
        if path is not None:
            check_target(option, path)
    if args.picture is not None and not args.picture.lower().endswith(".png"):
        raise ValueError(f"--picture must be a file name ending in .png, got {args.picture!r}")
    failed: list[Prediction] = []
    predictions: Iterable[Prediction] = name_failures(
        predict_images(args.checkpoint, args.images, top_k=args.top, batch_size=args.batch_size), failed
    )
    if args.picture is not None:
        predictions = list(predictions)
        # Before anything is printed: who reads that may leave after the first line.
        draw_predictions(Path(args.picture), args.checkpoint, predictions)
    form = json_lines if args.json else csv_lines if args.csv else table_lines
    lines = form(predictions)
    if args.output is None:
        for line in lines:
            say(line)
    else:
        with atomic_write(Path(args.output)) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 1 if failed else 0


def name_failures(predictions: Iterable[Prediction], failed: list[Prediction]) -> Iterator[Prediction]:
    """Pass predictions on as they come, naming failures on stderr and collecting them."""
    for prediction in predictions:
        if prediction.error is not None:
            failed.append(prediction)
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


def draw_predictions(path: Path, checkpoint: str, predictions: list[Prediction]) -> None:
    """Draw what the model saw of the first images that could be read, with their most probable class."""
    readable = [prediction for prediction in predictions if prediction.error is None]
    if not readable:
        complain("polaformer predict", "warning: --picture has nothing to draw: no image could be read")
        return
    shown = readable[:MOST_TILES]
    of_all = f" (the first {len(shown)} of {len(readable)})" if len(shown) < len(readable) else ""
    pictures = seen_pictures(checkpoint, [prediction.path for prediction in shown])
    tiles = [make_tile(picture, prediction) for picture, prediction in zip(pictures, shown)]
    draw_tiles(path, tiles, title=f"Most probable class{of_all}")


def make_tile(picture: PIL.Image.Image, prediction: Prediction) -> Tile:
    """The tile of one image that could be read."""
    assert prediction.class_name is not None
    assert prediction.probability is not None
    return Tile(picture, prediction.class_name, prediction.probability)
