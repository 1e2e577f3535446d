"""Two recorded runs of one kind beside each other: does it repeat, and which GPU is faster?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from fa_kernels.figures.recorded import read_run
from fa_kernels.figures.recorded_pairs import RecordedPairs
from fa_kernels.figures.run_comparison import comparison_spec
from fa_kernels.measure.records import RUN_KINDS, device_of, list_runs
from fa_kernels.problem import SHORT_DTYPE, dtype_name
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import Control, DrawnView
from fa_kernels.widgets.fold import Fold
from fa_kernels.widgets.run_comparison_words import (
    about_table,
    departures_table,
    names_of,
    notes_of,
    takeaway,
)
from fa_kernels.widgets.text import labels

#: What a comparison opens with: its kind of run, its metric. Ceilings have no calls to pair.
_KIND, _METRIC, _NOT_OF_CALLS = "grid", "latency_ms", "ceilings"


@dataclass(frozen=True)
class Asked:
    """What the controls show: two run ids ("" where there is none), metric, dtype and d.

    dtype "" and d 0 are all of them.
    """

    first: str
    second: str
    metric: str = _METRIC
    dtype: str = ""
    head_dim: int = 0


class RunsOnDisk:
    """Recorded runs by id, newest first, with their kinds; read when they are asked for."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        kinds = {name: kind for kind in RUN_KINDS for name in list_runs(root, kind)}
        # A run of an unknown kind is offered, too: whoever opens it says what is wrong.
        known = {name: kinds.get(name, _KIND) for name in list_runs(root)}
        self.kinds = {name: kind for name, kind in known.items() if kind != _NOT_OF_CALLS}
        self._read: dict[tuple[str, str], RecordedPairs | str] = {}

    def partners(self, run_id: str) -> list[str]:
        """The other runs of the same kind, newest first."""
        kind = self.kinds.get(run_id)
        return [name for name, other in self.kinds.items() if other == kind and name != run_id]

    def chosen(self, first: object, second: object) -> tuple[str, str]:
        """The two runs to open with; what is not given is the newest that fits.

        Raises:
            ValueError: no such run, one run twice, or two kinds; value and remedy.
        """
        for name, value in (("first", first), ("second", second)):
            if value is not None and value not in self.kinds:
                offered = ", ".join(self.kinds) or "none is recorded"
                raise ValueError(f"{name} = {value!r} is no run that can be compared: {offered}.")
        grids = [name for name, kind in self.kinds.items() if kind == _KIND]
        given = str(first or second or next(iter([*grids, *self.kinds]), ""))
        partner = next(iter(self.partners(given)), "")
        if first is None:  # the older one first: above 1 the newer one is faster
            return partner, given
        if second is None:
            return given, partner
        if second not in self.partners(given):
            others = " or ".join(self.partners(given)) or "nothing: it is the only one of its kind"
            raise ValueError(
                f"first = {first!r} and second = {second!r} are not two runs of one kind: beside "
                f"{first} choose {others}."
            )
        return given, str(second)

    def options(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """(text, run id) of each: id, GPU and date; "none" for an empty list."""
        text = labels("run_comparison")
        found = []
        for name in names:
            device = device_of(name, self.root) or text["device_unknown"]
            date = "-".join((name[:4], name[4:6], name[6:8]))
            found.append((text["run"].format(run_id=name, device=device, date=date), name))
        return found or [(text["none"], "")]

    def pairs(self, first: str, second: str) -> RecordedPairs | str:
        """Both runs beside each other, or a sentence that says why they cannot be."""
        text = labels("run_comparison")
        if not first or not second:
            alone = first or second
            if not alone:
                return str(text["no_runs"])
            return str(text["too_few"]).format(kind=self.kinds[alone], run_id=alone)
        if (first, second) not in self._read:
            runs = read_run(first, self.root), read_run(second, self.root)
            wrong = [run for run in runs if isinstance(run, str)]
            a, b = runs
            if isinstance(a, str) or isinstance(b, str):
                return " ".join(wrong)
            self._read[first, second] = RecordedPairs(a, b)
        return self._read[first, second]


class RunComparison(DrawnView):
    """At every call that both runs hold, the first over the second.

    `recorded` holds the pairs of both; None where there is nothing to compare.
    """

    recorded: RecordedPairs | None

    section, mark = "run_comparison", "runs"
    function = "compare_runs"
    pins = False  # it compares two runs already
    least_width = 540

    def __init__(self, asked: Asked, runs: RunsOnDisk) -> None:
        text, self.runs = labels(self.section), runs
        self.first = Choice(text["first"], runs.options([*runs.kinds]), asked.first or asked.second)
        partners = runs.partners(self.first.value)
        second = asked.second if asked.first else ""
        self.second = Choice(text["second"], runs.options(partners), second)
        found = runs.pairs(asked.first, asked.second)
        self.metric = Choice(text["metric"], _metrics(found), asked.metric)
        self.dtype = Choice(text["dtype"], _dtypes(found), asked.dtype)
        self.head_dim = Choice(text["head_dim"], _head_dims(found), asked.head_dim)
        self.note = ipywidgets.HTML()
        self.about = Fold(summary=text["about"])
        controls = (self.first, self.second, self.metric, self.dtype, self.head_dim)
        super().__init__(asked, controls)
        box: Any = self
        *above, table = box.children
        box.children = (*above, self.note, table, self.about)

    @property
    def setting(self) -> Asked:
        """What the controls show now."""
        return Asked(
            self.first.value, self.second.value, self.metric.value, self.dtype.value,
            self.head_dim.value,
        )  # fmt: skip

    def moved(self, control: Control) -> None:
        """A control has another value; another run brings other partners and other calls."""
        self._quiet = True
        try:
            if control is self.first:
                partners = self.runs.partners(self.first.value)
                kept = self.second.value in partners
                chosen = self.second.value if kept else next(iter(partners), "")
                self.second.offer(self.runs.options(partners), chosen)
            if control in (self.first, self.second):
                found = self.runs.pairs(self.first.value, self.second.value)
                for choice, options in (
                    (self.metric, _metrics(found)), (self.dtype, _dtypes(found)),
                    (self.head_dim, _head_dims(found)),
                ):  # fmt: skip
                    values = [value for _, value in options]
                    choice.offer(options, choice.value if choice.value in values else values[0])
        finally:
            self._quiet = False
        self.update(control.stamp)

    def restore(self, values: Mapping[Control, Any]) -> None:
        """With what the opening runs offer."""
        self.first.value = values[self.first]
        partners = self.runs.partners(self.first.value)
        self.second.offer(self.runs.options(partners), values[self.second])
        found = self.runs.pairs(self.first.value, self.second.value)
        self.metric.offer(_metrics(found), values[self.metric])
        self.dtype.offer(_dtypes(found), values[self.dtype])
        self.head_dim.offer(_head_dims(found), values[self.head_dim])

    def arguments(self) -> dict[str, Any]:
        """All dtypes and head dimensions are none in the call; without any run, all is."""
        asked = self.setting
        found = {
            "first": asked.first, "second": asked.second, "metric": asked.metric,
            "dtype": asked.dtype, "d": asked.head_dim,
        }  # fmt: skip
        known = bool(asked.first and asked.second)
        return {name: value for name, value in found.items() if known and value}

    def draw(self, setting: Asked, stamp: float) -> None:
        """Compute and show a setting."""
        found = self.runs.pairs(setting.first, setting.second)
        if isinstance(found, str):
            self.recorded = None
            self._show(
                comparison_spec([], ("", ""), setting.metric, self.text), found, "", [], "", stamp
            )
            return
        self.recorded = found
        where = (setting.metric, setting.dtype, setting.head_dim)
        pairs = found.pairs(*where)
        said = takeaway(found, pairs, *where)
        spec = comparison_spec(pairs, names_of(found), setting.metric, self.text)
        notes = notes_of(found, pairs, found.alone(*where))
        table = departures_table(found, setting.metric, pairs)
        self._show(spec, said, table, notes, about_table(found), stamp)

    def _show(
        self, spec: dict[str, Any], said: str, table: str, notes: Sequence[str], about: str,
        stamp: float,
    ) -> None:  # fmt: skip
        self.note.value = "".join(f'<div class="falab-note">{escape(note)}</div>' for note in notes)
        self.about.value = about
        self.about.layout.display = "" if about else "none"
        self.show(spec, self.text["figure"].format(sentence=said), said, table, stamp)


def _metrics(found: RecordedPairs | str) -> list[tuple[str, str]]:
    names = labels("run_comparison")["metrics"]
    held = [] if isinstance(found, str) else found.metrics
    return [(names.get(metric, metric), metric) for metric in held or [_METRIC]]


def _dtypes(found: RecordedPairs | str) -> list[tuple[str, str]]:
    held = [] if isinstance(found, str) else found.dtypes
    every = (labels("run_comparison")["all"], "")
    return [every, *((SHORT_DTYPE.get(name, name), name) for name in held)]


def _head_dims(found: RecordedPairs | str) -> list[tuple[str, int]]:
    held = [] if isinstance(found, str) else found.head_dims
    return [(labels("run_comparison")["all"], 0), *((str(d), d) for d in held)]


def _checked(name: str, value: Any, options: Sequence[tuple[str, Any]]) -> Any:
    if value not in [one for _, one in options]:
        offered = ", ".join(repr(one) for _, one in options if one)
        raise ValueError(f"{name} = {value!r} is not in both runs: use one of {offered}.")
    return value


def compare_runs(
    first: str | None = None,
    second: str | None = None,
    *,
    metric: str | None = None,
    dtype: str | None = None,
    d: int | None = None,
    session: Session | None = None,
) -> RunComparison:
    """Two recorded runs of one kind: at every call that both hold, the first over the second.

    Two runs of one GPU say how well a measurement repeats, those of two GPUs by how much one is
    faster, call by call. A call is the same in provider, variant, tiles, problem, options and
    pass; nothing is interpolated, and no line joins two calls.

    Args:
        first, second: run ids; default: the two newest runs of the grid, the older one first.
        metric: a metric of both runs, e.g. "latency_ms", "extra_mem_bytes", "hbm_bytes"; default:
            time, or else the first that both hold.
        dtype: "fp16", "bf16" or "fp32"; default: all.
        d: head dimension; default: all.
        session: what `fa.session` returned; default: the current one. Its folder of runs is used.

    Raises:
        ValueError: no such run, two kinds of run, or what is not in both; value and remedy.
        TypeError: `session` is not one.
    """
    runs = RunsOnDisk(in_use(session).root)
    one, other = runs.chosen(first, second)
    found = runs.pairs(one, other)
    metrics = _metrics(found)
    asked = Asked(
        one,
        other,
        metrics[0][1] if metric is None else _checked("metric", metric, metrics),
        "" if dtype is None else _checked("dtype", dtype_name(dtype), _dtypes(found)),
        0 if d is None else _checked("d", d, _head_dims(found)),
    )
    return RunComparison(asked, runs)
