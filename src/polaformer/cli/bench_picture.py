"""Draws what `polaformer bench` measured: time against tokens, with the count from which the operator beats softmax."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from polaformer.bench import FORWARD, TRAINING, Crossover, Timing
from polaformer.models.atomic import atomic_write

from .bench_tables import crossover_text, dtype_name

INK, GRID = "#37474f", "#e6e8eb"
OPERATOR, OTHER_BACKENDS = "#1f6feb", ("#0b3d91", "#5a9bf6", "#9cc4fb")
RIVALS = {"softmax": "#c62828", "published formula": "#8a8f98"}


def draw_times(
    path: str | Path, timings: Sequence[Timing], crossovers: Sequence[Crossover], notes: Sequence[str]
) -> None:
    """Write a picture of time against tokens, both logarithmic: a row for each device and dtype, a column for each pass.

    Args:
        path: PNG file to write; replaced at once when the drawing is done.
        timings: at least one.
        crossovers: where the operator starts to win; those against softmax are marked.
        notes: lines below, which name machine, versions and date.
    """
    groups = list(dict.fromkeys((each.problem.device, each.problem.dtype) for each in timings))
    colors = contender_colors(timings)
    figure = Figure(figsize=(10, 4.3 * len(groups) + 0.5), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(groups), 2, squeeze=False, sharex=True, sharey="row")
    for row, group in zip(panels, groups):
        for axes, pass_name in zip(row, (FORWARD, TRAINING)):
            chosen = [
                each
                for each in timings
                if (each.problem.device, each.problem.dtype, each.pass_name) == (*group, pass_name)
            ]
            marks = [
                each
                for each in crossovers
                if (each.problem.device, each.problem.dtype, each.pass_name, each.contender)
                == (*group, pass_name, "softmax")
            ]
            draw_panel(axes, chosen, marks, colors)
        row[0].set_ylabel("milliseconds", color=INK)
        row[0].legend(frameon=False, labelcolor=INK, loc="upper left")
    for axes in panels[-1]:
        axes.set_xlabel("tokens", color=INK)
    problem = timings[0].problem
    sizes = f"batch {problem.batch_size}, {problem.heads} heads of {problem.channels} channels"
    notes = [f"{sizes}; lines: medians, bands: fastest to slowest run", *notes]
    figure.supxlabel("\n".join(notes), x=0.01, ha="left", fontsize=7, color="#78838a")
    with atomic_write(Path(path)) as temporary:
        figure.savefig(temporary, format="png")


def draw_panel(axes: Axes, timings: Sequence[Timing], crossovers: Sequence[Crossover], colors: dict[str, str]) -> None:
    """Draw medians as lines and the range of the runs as bands, and mark where softmax falls behind."""
    problem = timings[0].problem
    for contender, color in colors.items():
        mine = sorted((each for each in timings if each.contender == contender), key=lambda each: each.problem.tokens)
        tokens = [each.problem.tokens for each in mine]
        low, middle, high = (
            [1e3 * getattr(each.seconds, name) for each in mine] for name in ("minimum", "median", "maximum")
        )
        axes.fill_between(tokens, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(tokens, middle, color=color, marker="o", markersize=4, linewidth=1.8, label=contender)
    axes.set(xscale="log", yscale="log")
    ticks = sorted({each.problem.tokens for each in timings})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    title = f"{timings[0].pass_name}, {dtype_name(problem)} on {problem.device}"
    for crossover in crossovers:
        if crossover.tokens is not None:
            axes.axvline(crossover.tokens, color=OPERATOR, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        title += f"\n{crossover_text(crossover, max(ticks))}"
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(colors=INK, which="both", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b7bc")


def contender_colors(timings: Sequence[Timing]) -> dict[str, str]:
    """A colour for each contender: blues for the operator's backends, in the order measured."""
    names = list(dict.fromkeys(each.contender for each in timings))
    blues = iter((OPERATOR, *OTHER_BACKENDS))
    return {name: RIVALS[name] if name in RIVALS else next(blues) for name in names}
