"""Draw a block mask and see at once what it keeps, moves and at best saves, checked in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

import ipywidgets
import numpy as np

from fa_kernels.attention import attention
from fa_kernels.block_mask import BlockMask
from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.recorded_sparse import RecordedSparse
from fa_kernels.figures.rungs import number_of
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.sparse_run import HEAD_DIMS, SEQLENS, dense_problem
from fa_kernels.patterns import PATTERNS
from fa_kernels.problem import AttentionProblem, checked_int
from fa_kernels.session import Session, in_use
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.floor import floor_ms
from fa_kernels.traffic.model import Traffic
from fa_kernels.units import duration, flops, significant, traffic
from fa_kernels.variants import VARIANTS, Variant, fastest
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import Control
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.mask_grid import MaskGrid, rows_of
from fa_kernels.widgets.mask_timer import MaskTimer
from fa_kernels.widgets.text import html_table, labels, scientific, takeaway_html

if TYPE_CHECKING:
    from fa_kernels.measure.live import MaskTiming

#: Blocks on a side of the grid.
SIDE = 16
PERCENTS = (3, 6, 13, 19, 25, 38, 50, 75, 100)
EDITED = ""
#: The check in NumPy: rows and keys of a block, head_dim, and tiles that do not divide the blocks.
CHECK_BLOCK, CHECK_DIM, CHECK_TILES = 6, 8, Tiling(16, 8)
#: Of the check, in float64.
LIMIT = 1e-12


@dataclass(frozen=True)
class Call:
    """The call that the numbers are about: N and d of the recorded sparse runs."""

    N: int
    d: int

    @property
    def dense(self) -> AttentionProblem:
        """Without a mask."""
        return dense_problem(self.N, self.d)

    def masked(self, keep: np.ndarray) -> AttentionProblem:
        """Under a mask whose blocks are a `SIDE`-th of N."""
        block = self.N // SIDE
        return replace(self.dense, block_mask=BlockMask(keep, block, block))


def preset(name: str, percent: int) -> np.ndarray:
    """The blocks of a pattern, (SIDE, SIDE) bool; of a pattern with one density whatever is asked.

    Raises:
        ValueError: an unknown pattern, or a density out of range.
    """
    known = PATTERNS.get(name)
    density = None if known is not None and known.fixed else percent / 100
    return BlockMask.pattern(name, SIDE, SIDE, 1, 1, density).keep[0, 0]


def checked_percent(value: object) -> int:
    """A density in percent, or a ValueError that says what it must be."""
    return checked_int(
        "density", value, 1, 100, "It is the part of the blocks to keep, in percent."
    )


def largest_difference(keep: np.ndarray) -> float:
    """Of the block-sparse result from the dense masked formula, both in float64 in NumPy."""
    n = SIDE * CHECK_BLOCK
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, n, CHECK_DIM))
    mask = BlockMask(keep, CHECK_BLOCK, CHECK_BLOCK)
    out = attention(q, k, v, block_mask=mask, tiling=CHECK_TILES, variant="flash_q_outer")
    kept = np.repeat(np.repeat(keep, CHECK_BLOCK, axis=0), CHECK_BLOCK, axis=1)
    p = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(CHECK_DIM)) * kept
    sums = p.sum(axis=-1, keepdims=True)
    want = np.where(sums > 0, p / np.where(sums > 0, sums, 1.0), 0.0) @ v
    return float(np.abs(out - want).max())


def modelled(call: Call, device: Device, recorded: RecordedSparse) -> Variant:
    """Whose bytes and times are shown: what the run timed, else the fastest that the GPU runs."""
    curves = recorded.curves(call.dense, "fwd")
    if curves.dense is not None:
        return VARIANTS[curves.series]
    return VARIANTS[fastest(device.sm)]


def moved(problem: AttentionProblem, variant: Variant, device: Device) -> Traffic:
    """HBM bytes in the `launched` model, with the tiles that the variant takes on this GPU."""
    return variant.launched(problem, variant.tiling_for(problem, device.smem_per_block_bytes))


def code_of(keep: np.ndarray, name: str, percent: int, call: Call) -> str:
    """The call that makes this mask, as Python: by its pattern, or block by block."""
    block = call.N // SIDE
    if name != EDITED:
        density = "" if PATTERNS[name].fixed else f", {percent / 100:g}"
        return (
            f'mask = fa.BlockMask.pattern("{name}", {call.N}, {call.N}, {block}, {block}{density})'
            "\nout = fa.attention(q, k, v, block_mask=mask)"
        )
    rows = " ".join(rows_of(keep))
    return (
        f'keep = [[cell == "#" for cell in row] for row in "{rows}".split()]\n'
        f"mask = fa.BlockMask.from_dense(keep, {block}, {block})\n"
        "out = fa.attention(q, k, v, block_mask=mask)"
    )


class MaskEditor(ipywidgets.VBox):
    """The editor. `mask` is what it shows; `difference` that of its check."""

    difference: float

    def __init__(
        self,
        name: str,
        percent: int,
        call: Call,
        device: Device,
        recorded: RecordedSparse,
        session: Session,
    ) -> None:
        self.device, self.recorded, self.text = device, recorded, labels("mask_editor")
        text = self.text
        named = [(text["patterns"][one], one) for one in PATTERNS]
        self.pattern = Choice(text["pattern"], [*named, (text["edited"], EDITED)], name)
        self.density = Knob(
            check=checked_percent, label=text["density"], description=text["density_description"],
            unit="%", values=list(PERCENTS), value=percent,
        )  # fmt: skip
        self.seqlen = Choice(text["seqlen"], [(str(n), n) for n in SEQLENS], call.N)
        self.head_dim = Choice(text["head_dim"], [(str(d), d) for d in HEAD_DIMS], call.d)
        self.grid = MaskGrid(preset(name, percent), text["grid"])
        self.sentence, self.table = ipywidgets.HTML(), ipywidgets.HTML()
        self._filling = False
        # What Run has measured, by the masked call.
        self._live: dict[AttentionProblem, MaskTiming] = {}
        self.timer = None
        if session.backend == "cuda":
            self.timer = MaskTimer(session, self._to_run, self.take)
        for control in (self.pattern, self.density):
            control.observe(lambda change: self._fill(change.owner), "value")
        for control in (self.seqlen, self.head_dim):
            control.observe(lambda change: self._draw(), "value")
        self.grid.observe(lambda change: self._edited(), "rows")
        self._draw()
        row = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
        controls: list[Control] = [self.pattern, self.density, self.seqlen, self.head_dim]
        wide = ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start", width="100%")
        self.grid.layout.flex, self.grid.layout.min_width = "1 1 22em", "16em"
        self.table.layout.flex, self.table.layout.min_width = "2 1 26em", "16em"
        shown = ipywidgets.HBox([self.grid, self.table], layout=wide)
        timer = [] if self.timer is None else [self.timer]
        super().__init__([self.sentence, ipywidgets.HBox(controls, layout=row), shown, *timer])

    @property
    def call(self) -> Call:
        """What the numbers are about."""
        return Call(self.seqlen.value, self.head_dim.value)

    @property
    def mask(self) -> BlockMask:
        """The mask on screen, for the call."""
        found = self.call.masked(self.grid.keep).block_mask
        assert found is not None
        return found

    def _to_run(self) -> AttentionProblem:
        """The masked call on screen.

        Raises:
            ValueError: the mask keeps nothing: there is nothing to time.
        """
        if not self.grid.keep.any():
            raise ValueError(str(self.text["nothing_to_run"]))
        return self.call.masked(self.grid.keep)

    def take(self, timing: MaskTiming) -> None:
        """Show what Run has measured; of other masks it stays known."""
        self._live[timing.problem] = timing
        self._draw()

    def _fill(self, moved_control: Control) -> None:
        """Another pattern or density: the grid begins anew from it."""
        name = self.pattern.value
        if self._filling or name == EDITED:
            # A density of what was drawn by hand: the nearest pattern is the local one.
            if self._filling or moved_control is self.pattern:
                return
            self._filling = True
            self.pattern.value = name = next(iter(PATTERNS))
            self._filling = False
        self._filling = True
        self.grid.start(preset(name, self.density.value))
        self._filling = False
        self._draw()

    def _edited(self) -> None:
        if self._filling:
            return
        self._filling = True
        self.pattern.value = self._name()
        self._filling = False
        self._draw()

    def _name(self) -> str:
        """The pattern on screen: the chosen one first, at the density that the knob shows."""
        names = [self.pattern.value, *PATTERNS]
        for name in (n for n in names if n != EDITED):
            if (preset(name, self.density.value) == self.grid.keep).all():
                return str(name)
        return EDITED

    def _draw(self) -> None:
        keep, call = self.grid.keep, self.call
        self.difference = largest_difference(keep)
        said = takeaway(keep, self.difference)
        mark = takeaway_html("mask-editor", escape(said))
        self.sentence.value = mark
        live = self._live.get(call.masked(keep))
        self.table.value = mask_table(keep, call, self.device, self.recorded, live)
        self.grid.code = code_of(keep, self.pattern.value, self.density.value, call)


def takeaway(keep: np.ndarray, difference: float) -> str:
    """What is kept, the bound on the gain, and the check."""
    text = labels("mask_editor")
    kept = int(keep.sum())
    if not kept:
        said = text["said_nothing"].format(of=keep.size)
    else:
        said = text["said"].format(
            kept=kept, of=keep.size, density=significant(kept / keep.size),
            times=significant(keep.size / kept),
        )  # fmt: skip
    empty = int((~keep.any(axis=1)).sum())
    if kept and empty:
        said += " " + text["said_empty"].format(rows=empty)
    verdict = "said_right" if difference <= LIMIT else "said_wrong"
    return f"{said} " + str(text[verdict]).format(difference=scientific(difference))


def mask_table(
    keep: np.ndarray,
    call: Call,
    device: Device,
    recorded: RecordedSparse,
    live: MaskTiming | None = None,
) -> str:
    """Dense, this mask and their ratio: work, bytes, and times where a run recorded the dense.

    `live`: what was measured here of this mask.
    """
    text = labels("mask_editor")
    dense, masked = call.dense, call.masked(keep)
    variant = modelled(call, device, recorded)
    whole, part = (moved(problem, variant, device) for problem in (dense, masked))
    both = {
        "row_flops": (matmul_flops(dense), matmul_flops(masked), flops),
        "row_kv": (_kv(whole), _kv(part), traffic),
        "row_rest": (whole.total_bytes - _kv(whole), part.total_bytes - _kv(part), traffic),
        "row_bytes": (whole.total_bytes, part.total_bytes, traffic),
    }
    rows = [[text["row_kept"], str(keep.size), str(int(keep.sum())), _ratio(keep.sum(), keep.size)]]
    for name, (before, after, show) in both.items():
        rows.append([text[name], show(before), show(after), _ratio(after, before)])
    rows += _time_rows(keep, call, device, recorded, text)
    if live is not None:
        dense_ms, ms = live.dense.median, live.masked.median
        name = text["row_live"].format(number=number_of(VARIANTS[live.variant]))
        rows.append([name, duration(dense_ms), duration(ms), _ratio(ms, dense_ms)])
    head = [text[name] for name in ("quantity", "dense", "this_mask", "ratio")]
    block = call.N // SIDE
    source = text["recorded"].format(run_id=recorded.run_id) if recorded.run_id else text["no_run"]
    caption = text["caption"].format(
        number=number_of(variant), problem=dense.describe(), block=block, device=device.name,
        source=source,
    )  # fmt: skip
    return html_table("mask-editor", caption, head, rows, "falab-table falab-dense")


def _kv(found: Traffic) -> int:
    return found.of("k") + found.of("v")


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.3f}"


def _time_rows(
    keep: np.ndarray,
    call: Call,
    device: Device,
    recorded: RecordedSparse,
    text: Mapping[str, str],
) -> list[list[str]]:
    """s times the recorded dense time, and what no mask gets under."""
    floor = floor_ms(call.dense, "fwd", device)
    rows = []
    timed = recorded.curves(call.dense, "fwd").dense
    if timed is not None:
        ideal = float(keep.mean()) * timed.ms
        shown = [duration(timed.ms), duration(max(ideal, floor))]
        rows.append([text["row_time"], *shown, _ratio(max(ideal, floor), timed.ms)])
    return [*rows, [text["row_floor"], duration(floor), duration(floor), ""]]


def mask_editor(
    pattern: str = "local",
    density: float = 0.25,
    *,
    N: int = 8192,
    d: int = 128,
    device: str | None = None,
    session: Session | None = None,
) -> MaskEditor:
    """A block mask of 16 × 16 blocks to draw in: what it keeps and moves, and whether it is right.

    Click or drag; arrow keys move, Space keeps or drops, Shift with arrows paints, Ctrl+Z undoes.
    The numbers are of B = 2, H = 16, bf16; the check runs block-sparse tiles in NumPy against the
    dense masked formula, both in float64, at every change. With a GPU, Run times the fastest rung
    that it runs on the mask that was drawn, beside the dense call.

    Args:
        pattern: a name of `fa_kernels.patterns.PATTERNS` to begin with.
        density: fraction of the blocks to keep, in whole percent.
        N, d: of the call that the numbers are about: 8192 or 65536, 64 or 128.
        device: slug of the GPU; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy. TypeError: `session` is not one.
    """
    for name, value, known in (("N", N, SEQLENS), ("d", d, HEAD_DIMS)):
        if value not in known:
            offered = ", ".join(map(str, known))
            raise ValueError(f"{name} = {value!r} is not offered here: use {offered}.")
    if isinstance(density, bool) or not isinstance(density, int | float) or not 0 < density <= 1:
        raise ValueError(f"density = {density!r} must be above 0 and at most 1, e.g. 0.25.")
    percent = checked_percent(max(1, round(100 * density)))
    preset(pattern, percent)  # refuses an unknown name
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    recorded = RecordedSparse.on(sheet, used.run, used.root)
    return MaskEditor(pattern, percent, Call(N, d), sheet, recorded, used)
