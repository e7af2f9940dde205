"""Learning curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from polaformer.models.atomic import atomic_write

TRAIN, HELD_OUT, SECOND = "#8a8f98", "#1f6feb", "#7fb2f0"


def draw_curves(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw loss and accuracy over epochs.

    Args:
        rows: at least one, with the columns of metrics.csv.
        path: PNG file to write; replaced as a whole.
    """
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in rows]
    marker = "o" if len(rows) < 40 else None

    def line(axes: Axes, column: str, color: str, label: str) -> None:
        axes.plot(epochs, [row[column] for row in rows], color=color, label=label, marker=marker, markersize=3)

    line(loss, "train_loss", TRAIN, "training, as minimised")
    line(loss, "val_loss", HELD_OUT, "held out")
    loss.set_title("Cross-entropy", loc="left")
    if any(row["val_top5"] < 1 for row in rows):  # always 1 for up to five classes
        line(accuracy, "val_top5", SECOND, "top-5")
    line(accuracy, "val_top1", HELD_OUT, "top-1")
    best = max(rows, key=lambda row: (row["val_top1"], -row["val_loss"]))
    accuracy.set_title(f"Held-out accuracy: best top-1 {best['val_top1']:.2%} (epoch {best['epoch']:.0f})", loc="left")
    accuracy.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    for axes in (loss, accuracy):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#e6e8eb", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png")
