"""How fast the rungs on tensor cores are beside other people's kernels, over N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_speed import (
    LONG_FROM,
    PRODUCTS,
    Curve,
    RecordedSpeed,
    geometric_mean,
)
from fa_kernels.figures.rungs import number_of
from fa_kernels.figures.speed import speed_spec
from fa_kernels.figures.theme import style_of
from fa_kernels.measure.speed_run import DTYPES, HEAD_DIMS, MASKS, PASSES
from fa_kernels.problem import DTYPE_FROM_SHORT, SHORT_DTYPE, dtype_name
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.text import html_table, labels

_SHORTS = [SHORT_DTYPE[name] for name in DTYPES]


@dataclass(frozen=True)
class Shown:
    """What the controls show: d, whether a causal mask, dtype by its short name, and which pass."""

    d: int
    causal: bool
    dtype: str
    pass_: str = "fwd"

    @classmethod
    def of(cls, d: object, causal: object, dtype: object, pass_: object = "fwd") -> Shown:
        """Checked arguments.

        Raises:
            ValueError: something that is not measured; value, limit and remedy.
        """
        short = SHORT_DTYPE[dtype_name(dtype)]
        for name, value, known in (
            ("d", d, HEAD_DIMS), ("causal", causal, (False, True)), ("dtype", short, _SHORTS),
            ("pass_", pass_, PASSES),
        ):  # fmt: skip
            if value not in known:
                offered = ", ".join(map(str, known))
                raise ValueError(f"{name} = {value!r} is not measured here: use {offered}.")
        return cls(int(str(d)), bool(causal), short, str(pass_))

    @property
    def attributes(self) -> dict[str, Any]:
        """Of the problems that were timed, by the names they have there."""
        mask = next(mask for mask in MASKS if (mask is not None) == self.causal)
        return {"head_dim": self.d, "causal": mask, "dtype": DTYPE_FROM_SHORT[self.dtype]}

    def curves(self, runs: RecordedSpeed) -> list[Curve]:
        """Every series that was timed here, our rungs first."""
        found = (runs.curve(name, **self.attributes) for name in (*runs.ours, *runs.peers))
        return [curve for curve in found if curve.rates]


def takeaway(shown: Shown, curves: Sequence[Curve], runs: RecordedSpeed, device: Device) -> str:
    """What the last rung reaches, and its speed as a multiple of each peer's."""
    text, ours = labels("speed"), [curve for curve in curves if curve.is_ours]
    if not ours:
        pass_ = text["passes"][shown.pass_]
        return str(text["said_nothing"]).format(device=device_words(device), pass_=pass_)
    last = ours[-1]
    rates = [rate.tflops for rate in last.rates]
    peak = device.peak_tflops(DTYPE_FROM_SHORT[shown.dtype], tensor_cores=True)
    said = text["said"].format(
        who=text["who"][shown.pass_].format(rung=_number(last)),
        low=significant(min(rates)), high=significant(max(rates)),
        first=last.rates[0].seqlen, last=last.rates[-1].seqlen, device=device_words(device),
        percent=f"{100 * max(rates) / peak:.0f}", peak=significant(peak),
    )  # fmt: skip
    parts = []
    for peer in runs.peers:
        if found := runs.ratios(last.series, peer, **shown.attributes).values():
            parts.append(
                text["said_peer"].format(
                    ratio=_times(geometric_mean(found)), name=style_of(peer).label,
                    low=_times(min(found)), high=_times(max(found)),
                )
            )  # fmt: skip
    if parts:
        said += " " + text["said_ratios"].format(least=LONG_FROM, parts=text["and"].join(parts))
    base, slower = _deterministic(shown, ours, runs)
    if repeatable := _ratios_to(base, slower):
        key = "said_deterministic" if base is last else "said_deterministic_of"
        said += " " + text[key].format(
            rung=_number(base), ratio=_times(geometric_mean(repeatable)),
            low=_times(min(repeatable)), high=_times(max(repeatable)),
        )  # fmt: skip
    return str(said)


def _deterministic(
    shown: Shown, curves: Sequence[Curve], runs: RecordedSpeed
) -> tuple[Curve, Curve]:
    """The last rung that was also timed with a deterministic dq, and those times; or two empty."""
    for curve in (curve for curve in reversed(curves) if curve.is_ours):
        slower = runs.deterministic(curve.series, **shown.attributes)
        if slower.rates:
            return curve, slower
    return Curve("", ()), Curve("", ())


def _ratios_to(curve: Curve, slower: Curve) -> list[float]:
    """Times of `slower` over those of `curve`, at every N from LONG_FROM on that both have."""
    pairs = ((rate, curve.at(rate.seqlen)) for rate in slower.rates if rate.seqlen >= LONG_FROM)
    return [rate.ms / base.ms for rate, base in pairs if base]


def _number(curve: Curve) -> str:
    return number_of(VARIANTS[curve.series])


def _times(ratio: float) -> str:
    """Near 1 the second decimal matters."""
    return f"{ratio:.2f}×"


def speed_table(shown: Shown, curves: Sequence[Curve], runs: RecordedSpeed, device: Device) -> str:
    """The numbers behind the figure, one row per N, as HTML."""
    text = labels("speed")
    last = next((curve for curve in reversed(curves) if curve.is_ours), None)
    peers = [curve for curve in curves if not curve.is_ours]
    head = [text["axis_seqlen"]]
    head += [text[c].format(name=curve.name) for curve in curves for c in _COLUMNS]
    base, repeatable = _deterministic(shown, curves, runs)
    if last:
        head += [text["column_ratio"].format(peer=p.name, rung=_number(last)) for p in peers]
    if repeatable.rates:
        head.append(text["column_deterministic"].format(rung=_number(base)))
    body = []
    for n in sorted({rate.seqlen for curve in curves for rate in curve.rates}):
        cells = [str(n)]
        for curve in curves:
            rate = curve.at(n)
            cells += [duration(rate.ms), significant(rate.tflops)] if rate else ["", ""]
        for peer in peers:
            theirs, mine = peer.at(n), last.at(n) if last else None
            cells += [_times(theirs.ms / mine.ms) if theirs and mine else ""] if last else []
        if repeatable.rates:
            at = repeatable.at(n)
            cells.append(duration(at.ms) if at else "")
        body.append(cells)
    caption = _caption(shown, curves, runs, device)
    return html_table("speed", caption, head, body, "falab-table falab-dense")


_COLUMNS = ("column_time", "column_rate")


def _caption(shown: Shown, curves: Sequence[Curve], runs: RecordedSpeed, device: Device) -> str:
    text = labels("speed")
    said = {
        "d": shown.d, "dtype": shown.dtype, "device": device.name,
        "mask": text["masks"]["causal" if shown.causal else "none"],
        "pass_": text["passes"][shown.pass_],
    }  # fmt: skip
    if not curves:
        return str(text["caption_nothing"]).format(source=text["not_recorded"], **said)
    problem, products = curves[0].rates[0].row.problem, PRODUCTS[shown.pass_]
    flops = text["flops_causal" if shown.causal else "flops_none"]
    return str(text["caption"]).format(
        tokens=problem.batch * problem.seqlen_q, width=problem.nheads * problem.head_dim,
        source=text["recorded"].format(run_id=runs.run_id),
        flops=flops.format(each=2 * products, products=products), **said,
    )  # fmt: skip


class Speed(DrawnView):
    """TFLOP/s over N, a line per kernel; `curves` are those shown."""

    curves: Sequence[Curve]

    section = mark = "speed"
    least_width = 540

    def __init__(self, shown: Shown, device: Device, runs: Mapping[str, RecordedSpeed]) -> None:
        """`runs`: the recorded times of each pass."""
        self.device, self.runs = device, runs
        text = labels("speed")
        passes = [(text["passes"][name], name) for name in PASSES]
        self.pass_ = Choice(text["pass"], passes, shown.pass_)
        self.head_dim = Choice(text["head_dim"], [(str(d), d) for d in HEAD_DIMS], shown.d)
        masks = [(text["masks"]["none"], False), (text["masks"]["causal"], True)]
        self.causal = Choice(text["mask"], masks, shown.causal)
        self.dtype = Choice(text["dtype"], [(name, name) for name in _SHORTS], shown.dtype)
        super().__init__(shown, (self.pass_, self.head_dim, self.causal, self.dtype))

    @property
    def setting(self) -> Shown:
        """What the controls show now."""
        return Shown(self.head_dim.value, self.causal.value, self.dtype.value, self.pass_.value)

    def curve(self, series: str) -> Curve:
        """One of those shown; empty where nothing was recorded."""
        found = (curve for curve in self.curves if curve.series == series)
        return next(found, Curve(series, ()))

    @property
    def deterministic(self) -> Curve:
        """Of the last rung that has one, the backward with a deterministic dq; else empty."""
        return _deterministic(self.setting, self.curves, self.runs[self.pass_.value])[1]

    def headline(self) -> Headline:
        """The highest rate of every kernel that is shown."""
        return best_rates(self.curves)

    def draw(self, setting: Shown, stamp: float) -> None:
        """Compute and show a setting."""
        runs = self.runs[setting.pass_]
        curves = self.curves = setting.curves(runs)
        said = takeaway(setting, curves, runs, self.device)
        alt = self.text["figure"].format(sentence=said)
        table = speed_table(setting, curves, runs, self.device)
        run_id = runs.run_id if curves else ""
        self.show(speed_spec(curves, run_id, setting.pass_, self.text), alt, said, table, stamp)


def best_rates(curves: Sequence[Curve]) -> Headline:
    """Kernel -> the highest of its rates."""
    name = labels("headline")["best"]
    return {
        name.format(name=curve.name): (max(rate.tflops for rate in curve.rates), "TFLOP/s")
        for curve in curves
        if curve.rates
    }


def speed(
    d: int = 64,
    causal: bool = False,
    *,
    dtype: str = "fp16",
    pass_: str = "fwd",
    device: str | None = None,
    session: Session | None = None,
) -> Speed:
    """Recorded TFLOP/s over N of the rungs on tensor cores and of the fastest peers.

    All were timed in one process, call by call in turn; batch and heads follow N and d (16384
    tokens of width 2048). Of a causal call only the attended pairs count as work; a backward pass
    is five products of matrices, however many a kernel computes.

    Args:
        d: head dimension: 64, 128 or 256.
        causal: with a causal mask.
        dtype: "fp16" or "bf16".
        pass_: "fwd" or "bwd".
        device: slug of the GPU whose runs are shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    runs = {name: RecordedSpeed.on(sheet, used.run, used.root, name) for name in PASSES}
    return Speed(Shown.of(d, causal, dtype, pass_), sheet, runs)
