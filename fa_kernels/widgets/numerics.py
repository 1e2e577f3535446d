""" "Is it exact?", answered with numbers: errors against float64 over N, by dtype and inputs."""

from __future__ import annotations

from dataclasses import dataclass

from fa_kernels.device import device as find_device
from fa_kernels.figures.numerics import (
    FAST,
    FLASH,
    STANDARD,
    ErrorAt,
    RecordedErrors,
    numerics_spec,
)
from fa_kernels.figures.point import ratio_text
from fa_kernels.figures.theme import style_of
from fa_kernels.measure.numerics import DTYPES, EXACT, HEAD_DIMS, INPUTS
from fa_kernels.measure.paper import load_paper
from fa_kernels.problem import DTYPE_FROM_SHORT, SHORT_DTYPE
from fa_kernels.session import Session, in_use
from fa_kernels.units import significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.text import html_table, labels

#: What the sentence is about.
_SAID_DTYPE = "float16"


@dataclass(frozen=True)
class Chosen:
    """What the controls show: the distribution of q, k and v, and d."""

    inputs: str
    d: int

    @classmethod
    def of(cls, inputs: object, d: object) -> Chosen:
        """Checked arguments.

        Raises:
            ValueError: something that is not measured; value, limit and remedy.
        """
        for name, value, known in (("inputs", inputs, tuple(INPUTS)), ("d", d, HEAD_DIMS)):
            if value not in known:
                offered = ", ".join(map(str, known))
                raise ValueError(f"{name} = {value!r} is not measured here: use {offered}.")
        return cls(str(inputs), int(str(d)))


def takeaway(chosen: Chosen, errors: RecordedErrors) -> str:
    """Whether it is exact, in numbers of fp16 at the longest N; then what fp32 says, or a paper."""
    text = labels("numerics")
    last = {
        name: line[-1]
        for name in (EXACT, STANDARD, FLASH, FAST)
        if (line := errors.line(name, _SAID_DTYPE, chosen.d, chosen.inputs))
    }
    if len(last) < 4:
        return str(text["said_nothing"])
    flash, once = last[FLASH], last[EXACT]
    said = text["said"].format(
        N=flash.keys, d=chosen.d, inputs=text["inputs_said"][chosen.inputs],
        flash=significant(flash.units, 2), once=f"{flash.rmse / once.rmse:.2f}",
        fast=significant(last[FAST].units, 2), standard=significant(last[STANDARD].units, 2),
        ratio=ratio_text(last[STANDARD].rmse / flash.rmse),
    )  # fmt: skip
    more = _of_table_3(errors) if chosen.inputs == "outliers" else _in_fp32(chosen, errors)
    return f"{said} {more}".strip()


def _in_fp32(chosen: Chosen, errors: RecordedErrors) -> str:
    flash, standard = (
        errors.line(name, "float32", chosen.d, chosen.inputs) for name in (FLASH, STANDARD)
    )
    if not flash or not standard:
        return ""
    return str(labels("numerics")["said_fp32"]).format(
        flash=significant(flash[-1].units, 2), standard=significant(standard[-1].units, 2)
    )


def _of_table_3(errors: RecordedErrors) -> str:
    """FlashAttention-3's table 3 beside the ratios at every recorded N and d."""
    text = labels("numerics")
    rows = [r for r in load_paper() if r.paper == "FlashAttention-3" and r.metric == "rmse"]
    printed = {row.algorithm: row.value for row in rows if row.value}
    ratios = errors.ratios(STANDARD, FAST, _SAID_DTYPE, "outliers")
    standard, flash = printed.get("standard"), printed.get("FlashAttention")
    if not standard or not flash or not ratios:
        return ""
    said = text["said_paper"].format(
        standard=f"{standard:.1e}", flash=f"{flash:.1e}", printed=f"{standard / flash:.1f}×",
        low=f"{min(ratios):.1f}×", high=f"{max(ratios):.1f}×",
    )  # fmt: skip
    within = min(ratios) <= standard / flash <= max(ratios)
    verdict = "within" if within else "same_way" if min(ratios) > 1 else "other_way"
    return f"{said} {text['verdicts'][verdict]}"


def errors_table(chosen: Chosen, errors: RecordedErrors) -> str:
    """RMSE and largest error of every series, a row per dtype and N, as HTML."""
    text = labels("numerics")
    names = [EXACT, *errors.series()]
    head = [text["column_dtype"], text["axis_keys"]]
    head += [text["exact"] if name == EXACT else style_of(name).label for name in names]
    body = []
    for dtype in DTYPES:
        lines = {n: errors.line(n, dtype, chosen.d, chosen.inputs) for n in names}
        for keys in sorted({error.keys for line in lines.values() for error in line}):
            cells = [SHORT_DTYPE[dtype], str(keys)]
            for line in lines.values():
                at = next((error for error in line if error.keys == keys), None)
                cells.append(_cell(at) if at else "")
            body.append(cells)
    source = text["not_recorded"]
    if errors.run is not None:
        how = text["by_numpy" if errors.in_numpy else "by_kernels"]
        source = text["source"].format(run=errors.run.run_id, device=errors.run.device, how=how)
    inputs = text["inputs_said"][chosen.inputs]
    caption = text["caption"].format(d=chosen.d, inputs=inputs, source=source)
    return html_table("numerics", caption, head, body, "falab-table falab-dense falab-ways")


def _cell(error: ErrorAt) -> str:
    return f"{error.rmse:.2e} ({error.units:.2g} u)"


class Numerics(DrawnView):
    """Errors over N in three dtypes; `errors` holds the recorded ones."""

    section = mark = "numerics"

    def __init__(self, chosen: Chosen, errors: RecordedErrors) -> None:
        text = labels(self.section)
        self.errors = errors
        self.inputs = Choice(text["inputs"], [(text["kinds"][n], n) for n in INPUTS], chosen.inputs)
        self.head_dim = Choice(text["head_dim"], [(str(d), d) for d in HEAD_DIMS], chosen.d)
        super().__init__(chosen, (self.inputs, self.head_dim))

    @property
    def setting(self) -> Chosen:
        """What the controls show now."""
        return Chosen(self.inputs.value, self.head_dim.value)

    def line(self, series: str, dtype: str = "fp16") -> list[ErrorAt]:
        """The errors of one series as shown: a variant, a peer, or "float64", rounded once."""
        chosen = self.setting
        return self.errors.line(series, DTYPE_FROM_SHORT[dtype], chosen.d, chosen.inputs)

    def headline(self) -> Headline:
        """The error of every series at the longest N, in fp16."""
        lines = {name: self.line(name) for name in (STANDARD, FLASH, FAST)}
        text = labels("headline")["at_longest"]
        return {
            text.format(variant=VARIANTS[name].label, N=line[-1].keys): (line[-1].units, "u")
            for name, line in lines.items()
            if line
        }

    def draw(self, setting: Chosen, stamp: float) -> None:
        """Compute and show a setting."""
        said = takeaway(setting, self.errors)
        alt = self.text["figure"].format(sentence=said)
        table = errors_table(setting, self.errors)
        spec = numerics_spec(self.errors, setting.d, setting.inputs, self.text)
        self.show(spec, alt, said, table, stamp)


def numerics(
    inputs: str = "normal",
    d: int = 64,
    *,
    device: str | None = None,
    session: Session | None = None,
) -> Numerics:
    """Recorded errors against the formula in float64, over N, in fp16, bf16 and fp32.

    In rounding units u of each dtype, relative to the exact result; beside them the exact result
    rounded once, which no result in that dtype can beat. Recorded on the GPU of the session where
    there is such a run, else by the references in NumPy on a CPU: the caption says which.

    Args:
        inputs: distribution of q, k and v: "normal", "outliers" (as in FlashAttention-3) or
            "rising" (scores grow along the row, so that the maximum moves in nearly every tile).
        d: head dimension, 64 or 128.
        device: slug of the GPU whose run is preferred; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return Numerics(Chosen.of(inputs, d), RecordedErrors.on(sheet, used.root))
