"""Draws images with the classes a model saw on them, wrong ones marked, as one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import PIL.Image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polaformer.models.atomic import atomic_write

RIGHT, WRONG, NEUTRAL = "#2e7d32", "#c62828", "#37474f"
TILE_INCHES = 1.25
CAPTION_LENGTH = 18
SMALL_SIDE = 64


@dataclass(frozen=True)
class Tile:
    """One image of the picture."""

    image: PIL.Image.Image
    predicted: str
    """Name of the most probable class."""
    probability: float
    """Its probability, 0 to 1."""
    true: str | None = None
    """Name of the true class; None where it is not known."""

    def color(self) -> str:
        """Colour of frame and caption: says whether the prediction is right."""
        if self.true is None:
            return NEUTRAL
        return RIGHT if self.true == self.predicted else WRONG

    def caption(self) -> str:
        """Prediction with its probability, and the truth below where it is known; two lines."""
        name = shorten(self.predicted)
        if self.true is None:
            return f"{name}\n{self.probability:.0%}"
        return f"predicted {name}  {self.probability:.0%}\ntrue {shorten(self.true)}"


def shorten(name: str) -> str:
    """Cut a class name to what fits under a tile."""
    return name if len(name) <= CAPTION_LENGTH else name[: CAPTION_LENGTH - 1] + "…"


def draw_tiles(path: str | Path, tiles: Sequence[Tile], title: str, columns: int = 8) -> None:
    """Write a grid of images with their predictions to a PNG file.

    Args:
        path: file to write; replaced at once when the drawing is done.
        tiles: images in reading order, at least one.
        title: line above the grid.
        columns: images a row; fewer tiles make a narrower picture.

    Raises:
        ValueError: there are no tiles.
    """
    if not tiles:
        raise ValueError("tiles must hold at least one image, got none")
    columns = min(columns, len(tiles))
    rows = ceil(len(tiles) / columns)
    width, height = max(columns * TILE_INCHES, 4.0), rows * (TILE_INCHES + 0.3) + 0.5
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, color=NEUTRAL, y=1 - 0.18 / height, va="top")
    grid = figure.add_gridspec(
        rows, columns, left=0.02, right=0.98, top=1 - 0.5 / height, bottom=0.42 / height, hspace=0.5, wspace=0.15
    )
    for index, tile in enumerate(tiles):
        axes = figure.add_subplot(grid[index // columns, index % columns])
        # Tiny scans are smoothed, as eyes do: the corners of big square pixels hide the shape.
        smoothing = "bicubic" if max(tile.image.size) < SMALL_SIDE else "antialiased"
        # With vmin and vmax, or matplotlib would stretch the contrast of a grey picture.
        axes.imshow(tile.image, cmap="gray", vmin=0, vmax=255, interpolation=smoothing)
        axes.set(xticks=[], yticks=[], anchor="S")  # captions of a row stand in one line, whatever the images' shapes
        axes.set_xlabel(tile.caption(), fontsize=8, color=tile.color(), labelpad=4, parse_math=False)
        for spine in axes.spines.values():
            spine.set(color=tile.color(), linewidth=2.5 if tile.color() == WRONG else 1.0)
    with atomic_write(Path(path)) as temporary:
        figure.savefig(temporary, dpi=130, format="png")
