"""`polaformer demo`: train on handwritten digits, score on the fifth held out, draw what is predicted."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import PIL.Image

from polaformer.data.digits import load_digits_split
from polaformer.runs import Prediction, evaluate, predict_images
from polaformer_cli.console import is_first_process, say

from .fit import train
from .picture import Tile, draw_tiles
from .recipes import Setting, load_recipe

NUM_TILES = 40


def run(args: argparse.Namespace) -> int:
    """Run the demonstration and say what was reached, where the picture is and what to try next."""
    recipe = load_recipe("digits", [Setting("run.dir", args.out, shown="--out")])
    say("Training on four fifths of 1,797 handwritten digits ...")
    started = time.perf_counter()
    result = train(recipe)
    seconds = time.perf_counter() - started
    # The last weights, after a number of epochs fixed beforehand: the best epoch would be chosen by the very images
    # that are to judge it.
    weights = result.folder / "last.safetensors"
    scores = evaluate(weights, progress=False)
    if not is_first_process():
        return 0
    held_out = write_held_out(Path(args.out) / "held_out")
    predictions = list(predict_images(weights, held_out, top_k=1))
    summary = f"{scores['correct_top1']} of {scores['num_images']} held-out digits right: {scores['top1']:.2%}"
    picture = result.folder / "predictions.png"
    draw_tiles(picture, [make_tile(each) for each in choose(predictions)], title=f"{summary} (mistakes come first)")
    say(
        f"\n{summary} top-1\n"
        f"(weights after the last of {recipe.train.epochs} epochs; training took {seconds:.0f} s)\n\n"
        f"picture     {picture}\nrun folder  {result.folder}\n\n"
        "Try next:\n"
        f"  {program()} predict {shlex.quote(str(held_out[0].parent))} --checkpoint {shlex.quote(str(result.folder))}\n"
        f"  {program()} fit --data PHOTOS    # a folder of yours, with one sub-folder a class"
    )
    return 0


def program() -> str:
    """What to type for this program: its name where the shell finds that, else the path it was called by (`make demo`)."""
    found = shutil.which("polaformer") is not None or not os.access(sys.argv[0], os.X_OK)
    return "polaformer" if found else shlex.quote(sys.argv[0])


def write_held_out(folder: Path) -> list[Path]:
    """Write the held-out digits as PNG files, one folder a class, and return their paths."""
    images = load_digits_split().val
    paths = [folder / f"{Path(images.path(index)).relative_to('digits')}.png" for index in range(len(images))]
    for index, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        images.load(index, in_chans=1).save(path)
    return paths


def choose(predictions: list[Prediction]) -> list[Prediction]:
    """All mistakes first, then right ones spread over the digits, NUM_TILES in all."""
    wrong = [each for each in predictions if each.class_name != Path(each.path).parent.name]
    right = [each for each in predictions if each.class_name == Path(each.path).parent.name]
    count = min(max(NUM_TILES - len(wrong), 0), len(right))
    return wrong[:NUM_TILES] + [right[number * len(right) // count] for number in range(count)]


def make_tile(prediction: Prediction) -> Tile:
    """The picture's tile of one digit, whose true class is its folder's name."""
    path = Path(prediction.path)
    assert prediction.class_name is not None
    assert prediction.probability is not None
    with PIL.Image.open(path) as image:
        return Tile(image.copy(), prediction.class_name, prediction.probability, true=path.parent.name)
