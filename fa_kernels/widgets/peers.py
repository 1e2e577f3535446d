"""Our rung beside any peers that were timed: other backends of torch, and other packages."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from html import escape
from typing import Any

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.peers import peers_spec
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_peers import (
    PeersRun,
    Standing,
    curves_by_run,
    kernels_in,
    peers_runs,
    short_kernel,
)
from fa_kernels.figures.recorded_speed import PRODUCTS, Curve, Rate
from fa_kernels.figures.rungs import number_of
from fa_kernels.figures.theme import style_of
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.records import Row
from fa_kernels.measure.speed_run import DTYPES, HEAD_DIMS, MASKS
from fa_kernels.problem import DTYPE_FROM_SHORT, SHORT_DTYPE, dtype_name
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, significant
from fa_kernels.variants import VARIANTS, fast_variants
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.speed import best_rates
from fa_kernels.widgets.text import html_table, labels

_Runs = Sequence[PeersRun]


@dataclass(frozen=True)
class Shown:
    """What the controls show: d, whether a causal mask, dtype by its short name."""

    d: int
    causal: bool
    dtype: str

    @property
    def attributes(self) -> dict[str, Any]:
        """Of the problems that were timed, by the names they have there."""
        mask = next(mask for mask in MASKS if (mask is not None) == self.causal)
        return {"head_dim": self.d, "causal": mask, "dtype": DTYPE_FROM_SHORT[self.dtype]}

    @property
    def words(self) -> dict[str, Any]:
        """For captions and sentences."""
        masks = labels("speed")["masks"]
        mask = masks["causal" if self.causal else "none"]
        return {"d": self.d, "dtype": self.dtype, "mask": mask}


def offered(runs: _Runs) -> tuple[list[int], list[str]]:
    """(d, short dtypes) with a time in any run; without a run, what a run would measure."""
    head_dims = sorted({d for run in runs for d in run.head_dims}) or list(HEAD_DIMS)
    known = {dtype for run in runs for dtype in run.dtypes} or set(DTYPES)
    return head_dims, [short for name, short in SHORT_DTYPE.items() if name in known]


# -- the sentence ----------------------------------------------------------------------------------


def takeaway(shown: Shown, runs: _Runs, device: Device) -> str:
    """Where our rung stands in every run, and which calls have no time."""
    text = labels("peers")
    if not runs:
        return str(text["said_nothing"]).format(device=device_words(device))
    found = curves_by_run(runs, **shown.attributes)
    if not found:
        names = text["and"].join(run.run_id for run in runs)
        return str(text["said_not_here"]).format(runs=names, **shown.words)
    said, spoken = [], set[str]()
    for run in (run for run in runs if run.run_id in found):
        said.append(_of_run(run, found[run.run_id], shown, spoken))
        spoken |= {curve.series for curve in found[run.run_id]}
    if any(run.standings(**shown.attributes) for run in runs):
        said.append(text["said_ratios"])
    known = {name for run in runs for name in run.times.ours}
    if absent := [VARIANTS[n] for n in fast_variants(device.sm) if n not in known]:
        said.append(text["said_absent"].format(rungs=text["and"].join(map(number_of, absent))))
    untimed = [_no_time(rows) for rows in _untimed(runs, shown).values()]
    said += [text["said_untimed"].format(parts=text["and"].join(untimed))] if untimed else []
    return " ".join(said)


def _of_run(run: PeersRun, curves: Sequence[Curve], shown: Shown, spoken: Set[str]) -> str:
    """Faster than whom, slower than whom, and beside whom it depends on N.

    Peers that were `spoken` of, from a run before, are left to figure and table where this run has
    others.
    """
    text, standings = labels("peers"), run.standings(**shown.attributes)
    standings = [one for one in standings if one.peer not in spoken] or standings
    ours = [curve for curve in curves if curve.is_ours]
    if not ours:
        return str(text["said_no_rung"]).format(run_id=run.run_id)
    parts = []
    for word in ("faster", "slower"):
        by_count: dict[int, list[str]] = {}
        for one in standings:
            if getattr(one, word) == len(one.ratios):
                by_count.setdefault(len(one.ratios), []).append(text["name"].format(**_words(one)))
        parts += [text[word].format(of=n, names=", ".join(by)) for n, by in by_count.items()]
    for one in standings:
        if len(one.ratios) not in (one.faster, one.slower):
            counts = {"faster": one.faster, "slower": one.slower, "level": one.level}
            parts.append(text["mixed"].format(**_words(one), **counts))
    rung = number_of(VARIANTS[ours[-1].series])
    return str(text["said"]).format(run_id=run.run_id, rung=rung, parts="; ".join(parts))


def _words(standing: Standing) -> dict[str, Any]:
    low, high = min(standing.ratios), max(standing.ratios)
    name, of = style_of(standing.peer).label, len(standing.ratios)
    return {"name": name, "of": of, "low": _times(low), "high": _times(high)}


def _times(ratio: float) -> str:
    """Near 1 the second decimal matters."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{significant(ratio)}×"


def _untimed(runs: _Runs, shown: Shown) -> Mapping[tuple[str, str, str], list[Row]]:
    """(series, status, reason) -> calls without a time."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for run in runs:
        for row in run.untimed(**shown.attributes):
            found.setdefault((row.series, row.status, row.detail), []).append(row)
    return found


def _no_time(rows: Sequence[Row]) -> str:
    row, seqlens = rows[0], sorted({row.seqlen_q for row in rows})
    return str(labels("peers")["untimed"]).format(
        name=style_of(row.series).label, status=row.status, detail=row.detail,
        seqlens="N = " + ", ".join(map(str, seqlens)),
    )  # fmt: skip


# -- the table -------------------------------------------------------------------------------------


def peers_table(shown: Shown, runs: _Runs, device: Device) -> str:
    """The numbers behind the figure, N by N and run by run, then the kernels in full; HTML."""
    text, found = labels("peers"), curves_by_run(runs, **shown.attributes)
    names = ("seqlen", "run", "name", "time", "spread", "rate", "ratio", "kernel")
    head = [text[f"column_{name}"] for name in names]
    short = _short_ids(list(found))
    body = []
    for n in sorted({n for curves in found.values() for curve in curves for n in _seqlens(curve)}):
        for run in (run for run in runs if run.run_id in found):
            at, curves = [str(n), short[run.run_id]], found[run.run_id]
            ours = next((curve for curve in reversed(curves) if curve.is_ours), None)
            mine = ours.at(n) if ours else None
            for curve in curves:
                if rate := curve.at(n):
                    body.append([*at, curve.name, *_cells(rate, mine)])
            for row in (row for row in run.untimed(**shown.attributes) if row.seqlen_q == n):
                body.append([*at, style_of(row.series).label, row.status, "", "", "", row.detail])
    table = html_table("peers", _caption(shown, found, device), head, body, _CSS)
    return table + _kernel_list(found)


_CSS = "falab-table falab-dense falab-peers"


def _short_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """Without what all begin with, which the caption has: "…peers" and "…flex"."""
    words = [run_id.split("-") for run_id in run_ids]
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    common = len(list(columns)) if len(words) > 1 else 0
    rests = ["-".join(one[min(common, len(one) - 1) :]) for one in words]
    return {
        run_id: f"…{rest}" if common else rest for run_id, rest in zip(run_ids, rests, strict=True)
    }


def _seqlens(curve: Curve) -> list[int]:
    return [rate.seqlen for rate in curve.rates]


def _cells(rate: Rate, mine: Rate | None) -> list[str]:
    row = rate.row
    spread = "" if row.p20 is None or row.p80 is None else f"{row.p20:.4g} to {row.p80:.4g}"
    ratio = _times(rate.ms / mine.ms) if mine else ""
    return [duration(rate.ms), spread, significant(rate.tflops), ratio, _kernel(row)]


def _kernel(row: Row) -> str:
    """The longest-running kernel by its own name, and how many names more there are."""
    text, names = labels("peers"), kernels_in(row)
    if not names:
        return str(text["unknown"])
    if row.variant in VARIANTS:
        tiles = {"block_m": row.block_m, "block_n": row.block_n}
        return str(text["tiles"]).format(name=names[0], **tiles)
    short = short_kernel(names[0])
    return str(text["more"]).format(name=short, more=len(names) - 1) if names[1:] else short


def _caption(shown: Shown, found: Mapping[str, Sequence[Curve]], device: Device) -> str:
    text, speed = labels("peers"), labels("speed")
    if not found:
        return str(text["caption_nothing"]).format(device=device.name, **shown.words)
    problem = next(iter(found.values()))[0].rates[0].row.problem
    products = PRODUCTS["fwd"]
    flops = speed["flops_causal" if shown.causal else "flops_none"]
    return str(text["caption"]).format(
        tokens=problem.batch * problem.seqlen_q, width=problem.nheads * problem.head_dim,
        device=device.name, runs=text["and"].join(found),
        flops=flops.format(each=2 * products, products=products), **shown.words,
    )  # fmt: skip


def _kernel_list(found: Mapping[str, Sequence[Curve]]) -> str:
    """Every peer with what it is and the names of its kernels, folded away; "" without peers."""
    text, items = labels("peers"), []
    peers: dict[str, dict[str, None]] = {}
    for curve in (curve for curves in found.values() for curve in curves if not curve.is_ours):
        ran = (name for rate in curve.rates for name in kernels_in(rate.row))
        peers.setdefault(curve.series, {}).update(dict.fromkeys(ran))
    for series, names in peers.items():
        summary = BASELINES[series].summary if series in BASELINES else series
        said = text["kernels_of"].format(name=style_of(series).label, summary=summary)
        known = list(names) or [text["unknown"]]
        codes = "".join(f"<li><code>{escape(name)}</code></li>" for name in known)
        items.append(f"<li>{escape(said)}<ul>{codes}</ul></li>")
    if not items:
        return ""
    summary, listed = escape(text["kernels"]), "".join(items)
    return f'<details class="falab-fold"><summary>{summary}</summary><ul>{listed}</ul></details>'


# -- the widget ------------------------------------------------------------------------------------


class Peers(DrawnView):
    """TFLOP/s over N, a line per kernel of the first run and open marks of the others."""

    section = mark = "peers"
    least_width = 560
    folds_table = True

    def __init__(self, shown: Shown, device: Device, runs: _Runs) -> None:
        """`runs`: those of the device, the one whose points are joined first."""
        self.device, self.runs = device, runs
        text, masks = labels("peers"), labels("speed")["masks"]
        head_dims, shorts = offered(runs)
        self.head_dim = Choice(text["head_dim"], [(str(d), d) for d in head_dims], shown.d)
        both = [(masks["none"], False), (masks["causal"], True)]
        self.causal = Choice(text["mask"], both, shown.causal)
        self.dtype = Choice(text["dtype"], [(name, name) for name in shorts], shown.dtype)
        super().__init__(shown, (self.head_dim, self.causal, self.dtype))

    @property
    def setting(self) -> Shown:
        """What the controls show now."""
        return Shown(self.head_dim.value, self.causal.value, self.dtype.value)

    def curve(self, series: str, run_id: str | None = None) -> Curve:
        """One of those shown, of the first run unless one is named; empty where none is."""
        found = curves_by_run(self.runs, **self.setting.attributes)
        chosen = found.get(run_id or next(iter(found), ""), [])
        return next((curve for curve in chosen if curve.series == series), Curve(series, ()))

    def headline(self) -> Headline:
        """The highest rate of every kernel of the first run."""
        found = curves_by_run(self.runs, **self.drawn.attributes)
        return best_rates(next(iter(found.values()), []))

    def draw(self, setting: Shown, stamp: float) -> None:
        """Compute and show a setting."""
        self.drawn = setting
        said = takeaway(setting, self.runs, self.device)
        spec = peers_spec(curves_by_run(self.runs, **setting.attributes), self.text)
        alt = self.text["figure"].format(sentence=said)
        self.show(spec, alt, said, peers_table(setting, self.runs, self.device), stamp)


def peers(
    d: int = 128,
    causal: bool = False,
    *,
    dtype: str = "bf16",
    device: str | None = None,
    session: Session | None = None,
) -> Peers:
    """Recorded TFLOP/s over N of the rungs on tensor cores and of whatever peers a run named.

    Each run is a process of its own: the points of the largest are joined, those of further runs
    stand beside them as open marks. Batch and heads follow N and d as in `fa.speed`; of a causal
    call only the attended pairs count as work.

    Args:
        d: head dimension, one that was recorded.
        causal: with a causal mask.
        dtype: one that was recorded, such as "fp16" or "bf16".
        device: slug of the GPU whose runs are shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value, or one that was not recorded; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    runs = peers_runs(sheet, used.run, used.root)
    short, (head_dims, shorts) = SHORT_DTYPE[dtype_name(dtype)], offered(runs)
    for name, value, known in (
        ("d", d, head_dims), ("causal", causal, [False, True]), ("dtype", short, shorts),
    ):  # fmt: skip
        if value not in known:
            listed = ", ".join(map(str, known))
            refusal = labels("peers")["not_offered"]
            raise ValueError(refusal.format(name=name, value=value, offered=listed))
    return Peers(Shown(d, causal, short), sheet, runs)
