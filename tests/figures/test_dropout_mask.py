"""The picture of a mask: its cells, and the borders of the tiles it was drawn in."""

from __future__ import annotations

import numpy as np

from fa_kernels.figures import theme
from fa_kernels.figures.dropout_mask import BACKWARD, FORWARD, Drawn, dropout_mask_spec
from fa_kernels.tiling import Tiling
from fa_kernels.widgets.text import labels

TEXT = labels("dropout_mask")


def test_cells_and_borders() -> None:
    keep = np.arange(100).reshape(10, 10) % 3 > 0
    drawn = {FORWARD: Drawn(keep, Tiling(4, 5)), BACKWARD: Drawn(keep, Tiling(5, 4))}
    spec = dropout_mask_spec(drawn, TEXT)
    cells, borders, cells2, borders2 = spec["data"]
    assert cells["z"] == cells2["z"] == keep.astype(int).tolist()
    assert drawn[FORWARD].tiles == (3, 2)
    # Rows end at 4, 8 and 10, keys at 5 and 10; cells lie around whole numbers.
    assert set(filter(lambda y: y is not None, borders["y"])) == {-0.5, 3.5, 7.5, 9.5}
    assert set(filter(lambda x: x is not None, borders["x"])) == {-0.5, 4.5, 9.5}
    assert borders["x"] != borders2["x"]
    assert "6 tiles of 4 × 5" in spec["layout"]["annotations"][0]["text"]


def test_rows_run_downwards_and_dropped_stays_dark() -> None:
    drawn = dict.fromkeys((FORWARD, BACKWARD), Drawn(np.ones((4, 4), bool), Tiling(2, 2)))
    spec = dropout_mask_spec(drawn, TEXT)
    low, high = spec["layout"]["yaxis"]["range"]
    assert low > high
    assert theme.DROPPED not in theme.DARK, "on a dark page ink is light, like P's yellow"
