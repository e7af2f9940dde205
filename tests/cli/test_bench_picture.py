from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from polaformer.bench import FORWARD, TRAINING, Problem, Spread, Timing, find_crossovers
from polaformer.cli.bench_picture import OPERATOR, draw_times


def make_timings(dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> list[Timing]:
    """Softmax takes half as long at 100 tokens and twice as long at 400, in training never."""
    timings = []
    for dtype in dtypes:
        for tokens, rival in ((100, 1.0), (400, 4.0)):
            for pass_name, factor in ((FORWARD, 1.0), (TRAINING, 0.1)):
                for name, milliseconds in (
                    ("operator", 2.0),
                    ("operator, reference", 3.0),
                    ("softmax", rival * factor),
                ):
                    spread = Spread(0.9e-3 * milliseconds, 1e-3 * milliseconds, 1.2e-3 * milliseconds)
                    timings.append(Timing(name, pass_name, Problem(tokens, dtype=dtype), spread, spread, 1.0, 1, 0.0))
    return timings


@pytest.fixture
def figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """The figure drawn of timings in two dtypes."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: drawn.append(figure))
    timings = make_timings((torch.float32, torch.bfloat16))
    draw_times(tmp_path / "bench.png", timings, find_crossovers(timings), ["the machine", "the versions"])
    return drawn[0]


def test_a_panel_for_each_dtype_and_pass__log_log(figure: Figure) -> None:
    titles = [axes.get_title(loc="left").splitlines() for axes in figure.axes]
    assert [title[0] for title in titles] == [
        f"{name}, {dtype} on cpu" for dtype in ("float32", "bfloat16") for name in (FORWARD, TRAINING)
    ]
    assert titles[0][1] == "faster than softmax from about 200 tokens on"
    assert titles[1][1] == "not faster than softmax up to 400 tokens"
    assert all((axes.get_xscale(), axes.get_yscale()) == ("log", "log") for axes in figure.axes)
    assert figure.get_supxlabel().splitlines()[1:] == ["the machine", "the versions"]


def test_lines_are_medians_and_the_mark_stands_where_they_cross(figure: Figure) -> None:
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert np.asarray(lines["softmax"].get_xydata()).tolist() == [[100, 1.0], [400, 4.0]]
    assert np.asarray(lines["operator"].get_xydata()).tolist() == [[100, 2.0], [400, 2.0]]
    (mark,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert np.asarray(mark.get_xydata())[:, 0].tolist() == [200, 200]
    assert not [line for line in figure.axes[1].lines if line.get_linestyle() == "--"]


def test_every_contender_has_its_colour(figure: Figure) -> None:
    colors = {line.get_label(): line.get_color() for line in figure.axes[0].lines if line.get_linestyle() == "-"}
    assert len(set(colors.values())) == len(colors) == 3
    assert colors["operator"] == OPERATOR
