from itertools import pairwise
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polaformer.cli.picture import NEUTRAL, RIGHT, WRONG, Tile, draw_tiles, shorten

GREY = PIL.Image.radial_gradient("L").resize((8, 11))


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[start : start + 2], 16) for start in (1, 3, 5))


def pixels_of(color: str, path: Path) -> int:
    with PIL.Image.open(path) as image:
        return int((np.asarray(image.convert("RGB")) == rgb(color)).all(-1).sum())


def test_tile__colour_and_caption() -> None:
    assert (Tile(GREY, "3", 0.904, true="3").color(), Tile(GREY, "3", 0.9, true="8").color()) == (RIGHT, WRONG)
    assert Tile(GREY, "3", 0.9).color() == NEUTRAL
    assert Tile(GREY, "3", 0.904, true="8").caption() == "predicted 3  90%\ntrue 8"
    assert Tile(GREY, "cat", 0.904).caption() == "cat\n90%"


def test_shorten() -> None:
    assert shorten("golden retriever") == "golden retriever"
    assert shorten("black and gold garden spider") == "black and gold ga…"


def test_draw_tiles__marks_right_and_wrong(tmp_path: Path) -> None:
    right, wrong = Tile(GREY, "3", 0.9, true="3"), Tile(GREY.convert("RGB"), "3", 0.6, true="8")
    draw_tiles(tmp_path / "right.png", [right] * 3, "three")
    draw_tiles(tmp_path / "mixed.png", [right, wrong, right], "three")
    assert pixels_of(WRONG, tmp_path / "right.png") == 0
    assert pixels_of(RIGHT, tmp_path / "right.png") > 50
    assert pixels_of(WRONG, tmp_path / "mixed.png") > 50


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (7, 7, 1), (17, 8, 3)])
def test_draw_tiles__grows_with_the_images(count: int, columns: int, rows: int, tmp_path: Path) -> None:
    draw_tiles(tmp_path / "tiles.png", [Tile(GREY, "3", 0.9)] * count, "some")
    with PIL.Image.open(tmp_path / "tiles.png") as image:
        width, height = image.size
    assert width == pytest.approx(130 * max(1.25 * columns, 4.0), abs=1)
    assert height == pytest.approx(130 * (1.55 * rows + 0.5), abs=1)


def test_draw_tiles__captions_stay_under_their_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: drawn.append(figure))
    tiles = [Tile(GREY.resize(size), "golden $retriever^ dog", 0.97) for size in ((70, 30), (30, 70), (50, 50))]
    draw_tiles(tmp_path / "tiles.png", tiles, "three")
    FigureCanvasAgg(drawn[0]).draw()
    boxes = [axes.xaxis.label.get_window_extent() for axes in drawn[0].axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert [box.y0 for box in boxes] == pytest.approx([boxes[0].y0] * 3, abs=1)


def test_draw_tiles__grey_keeps_its_contrast(tmp_path: Path) -> None:
    dark = PIL.Image.new("L", (70, 70), 50)
    dark.paste(60, (0, 0, 35, 70))
    draw_tiles(tmp_path / "tiles.png", [Tile(dark, "3", 0.9)], "one")
    with PIL.Image.open(tmp_path / "tiles.png") as image:
        pixels = np.asarray(image.convert("L"))
    middle = pixels[pixels.shape[0] // 3 : pixels.shape[0] // 2]
    assert {50, 60} <= set(np.unique(middle).tolist())


def test_draw_tiles__nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one image"):
        draw_tiles(tmp_path / "none.png", [], "none")
    assert not list(tmp_path.iterdir())
