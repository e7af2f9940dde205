import numpy as np
import pytest
from PIL import Image

from polaformer.runs.curves import draw_curves


@pytest.mark.parametrize("epochs", [1, 53])
def test_draws_both_panels(tmp_path, epochs):
    rows = [
        {"epoch": n, "train_loss": 2 / n, "val_loss": 1.5 / n, "val_top1": 1 - 0.9 / n, "val_top5": 1 - 0.2 / n}
        for n in range(1, epochs + 1)
    ]
    draw_curves(rows, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    assert pixels.shape == (480, 1200)
    left, right = pixels[40:-40, 60:540], pixels[40:-40, 660:1140]
    assert (left < 200).any()
    assert (right < 200).any()
