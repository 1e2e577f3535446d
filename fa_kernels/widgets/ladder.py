"""What each step of the ladder bought: recorded times, each against the rung before."""

from __future__ import annotations

from collections.abc import Sequence

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.ladder import LadderRuns, Step, gain_words, ladder_spec
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import checked_head_dim, checked_seqlen, ratio_text
from fa_kernels.problem import SHORT_DTYPE, AttentionProblem
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import TIME, Headline
from fa_kernels.widgets.recompute_cost import Sizes
from fa_kernels.widgets.setting import HEAD_DIMS, number_knob
from fa_kernels.widgets.text import html_table, labels

_COLUMNS = (
    "column_series",
    "column_tiles",
    "column_time",
    "column_spread",
    "column_rate",
    "column_gain",
    "column_total",
    "column_run",
)


def ladder_runs(device: str | None, session: Session | None) -> tuple[Device, LadderRuns]:
    """The device a widget opens on, and the timings recorded there.

    Raises:
        ValueError: no such device; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return sheet, LadderRuns.on(sheet, used.run, used.root)


def known_sizes(runs: LadderRuns, problem: AttentionProblem) -> str:
    """The recorded N at this d, or else the recorded d, in words; "" where nothing is recorded."""
    text = labels("ladder")
    if seqlens := runs.seqlens(problem.head_dim, problem.dtype):
        return str(text["known_seqlens"]).format(sizes=", ".join(map(str, seqlens)))
    head_dims = ", ".join(map(str, runs.head_dims(problem.dtype)))
    return str(text["known_head_dims"]).format(sizes=head_dims) if head_dims else ""


def takeaway(found: Sequence[Step], runs: LadderRuns) -> str:
    """From the first rung to the last, the largest step, and how far the best peer is."""
    text = labels("ladder")
    ours = [step for step in found if step.is_rung and step.ms]
    if not ours:
        problem = found[0].problem
        known = known_sizes(runs, problem) or text["known_seqlens"].format(sizes=text["none"])
        return str(text["said_nothing"]).format(
            N=problem.seqlen_q, d=problem.head_dim, dtype=SHORT_DTYPE[problem.dtype], known=known
        )
    first, last = ours[0], ours[-1]
    said = text["said" if len(ours) > 1 else "said_only"].format(
        first=_short(first), last=_short(last), old=duration(first.ms or 0.0),
        new=duration(last.ms or 0.0), ratio=ratio_text((first.ms or 0.0) / (last.ms or 1.0)),
        name=_short(last), time=duration(last.ms or 0.0),
    )  # fmt: skip
    gains = [(step.gain, step) for step in ours if step.gain]
    if gains:
        gain, step = max(gains, key=lambda pair: pair[0])
        if gain > 1:
            across = f" {text['across']}" if step.across_runs else ""
            said += " " + text["said_step"].format(
                name=_short(step), ratio=ratio_text(gain), across=across
            )
        slower = [_short(step) for gain, step in gains if gain < 1]
        if slower:
            said += " " + text["said_slower"].format(names=", ".join(slower))
    said += _switches(found)
    peers = [(step.ms, step) for step in found if not step.variant and step.ms]
    if peers and last.ms:
        ms, peer = min(peers, key=lambda pair: pair[0])
        said += " " + text["said_peer"].format(
            name=peer.name, time=duration(ms), last=_short(last), ratio=ratio_text(last.ms / ms)
        )
    return said


def _switches(found: Sequence[Step]) -> str:
    """Of every rung the switch that costs most when it is turned off, in one sentence; or ""."""
    text, worst = labels("ladder"), dict[str, tuple[float, Step]]()
    for step in found:
        if step.without and step.gain and step.gain < 1:
            known = worst.get(_short(step))
            if known is None or step.gain < known[0]:
                worst[_short(step)] = (step.gain, step)
    parts = [
        text["said_switch" if i == 0 else "said_switch_too"].format(
            name=name, switch=step.without, ratio=f"{1 / gain:.2f}×"
        )
        for i, (name, (gain, step)) in enumerate(worst.items())
    ]
    return f" {'; '.join(parts)}." if parts else ""


def _short(step: Step) -> str:
    return f"rung {step.name.split(' ')[0]}"


def ladder_table(found: Sequence[Step], device: Device) -> str:
    """The numbers behind the figure, one row per series, as HTML."""
    text, first = labels("ladder"), next((s for s in found if s.is_rung and s.ms), None)
    body = []
    for step in found:
        tiles = f"{step.tiling.block_m} × {step.tiling.block_n}" if step.tiling else text["own"]
        if step.row is None or step.ms is None:
            body.append([step.name, "", step.why or text["not_recorded"], "", "", "", "", ""])
            continue
        spread = f"{duration(step.row.p20 or step.ms)} to {duration(step.row.p80 or step.ms)}"
        total = f"{first.ms / step.ms:.3g}×" if first and first.ms else ""
        body.append(
            [
                step.name, tiles, duration(step.ms), spread, significant(step.tflops or 0.0),
                gain_words(step, text), total, step.run_id,
            ]
        )  # fmt: skip
    head = [text[name] for name in _COLUMNS]
    caption = text["caption"].format(problem=found[0].problem.describe(), device=device.name)
    return html_table("ladder", caption, head, body, "falab-table falab-dense")


class SizedView(DrawnView):
    """A `DrawnView` of one recorded problem: N, d and dtype."""

    has_presets = True

    def __init__(self, sizes: Sizes, device: Device, runs: LadderRuns) -> None:
        self.device, self.runs = device, runs
        self.seqlen = number_knob("seqlen", SEQLENS, sizes.N, checked_seqlen)
        self.head_dim = number_knob("head_dim", HEAD_DIMS, sizes.d, checked_head_dim)
        # Every dtype that some rung takes: what does not take it is left out of the figure.
        names = [(name, name) for name in sorted(SHORT_DTYPE.values(), key=_DTYPES.index)]
        self.dtype = Choice(labels("explorer")["dtype"], names, sizes.dtype)
        super().__init__(sizes, (self.seqlen, self.head_dim, self.dtype))

    @property
    def setting(self) -> Sizes:
        """What the controls show now."""
        return Sizes(self.seqlen.value, self.head_dim.value, self.dtype.value)


_DTYPES = ["fp16", "bf16", "fp32"]


class Ladder(SizedView):
    """A bar of recorded time for every rung and peer; `steps` are those shown."""

    steps: Sequence[Step]

    section = mark = "ladder"
    least_width = 560

    def headline(self) -> Headline:
        """The time of every rung and peer that is shown."""
        return {step.name: (step.ms, TIME) for step in self.steps}

    def draw(self, setting: Sizes, stamp: float) -> None:
        """Compute and show a setting."""
        found = self.steps = self.runs.steps(setting.problem)
        said = takeaway(found, self.runs)
        alt = self.text["figure"].format(sentence=said)
        table = ladder_table(found, self.device)
        self.show(ladder_spec(found, self.text), alt, said, table, stamp)


def ladder(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> Ladder:
    """Recorded times of every rung with its fastest tiles, each against the rung before.

    Peers stand below under their own names. Nothing is interpolated: what was not recorded at this
    N, d and dtype says so.

    Args:
        N, d: sequence length and head dimension; batch and heads follow (16384 tokens of width
            2048).
        dtype: "fp16", "bf16" or "fp32".
        device: slug of the GPU whose runs are shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    return Ladder(Sizes.of(N, d, dtype), *ladder_runs(device, session))
