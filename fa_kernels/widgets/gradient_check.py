"""The gradients of the flash backward against central differences, here and now, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ipywidgets
import numpy as np

from fa_kernels.attention import attention, attention_backward
from fa_kernels.dropout import dropout_keep
from fa_kernels.figures.gradient_errors import NAMES, Errors, gradient_errors_spec
from fa_kernels.problem import checked_int
from fa_kernels.tiling import Tiling
from fa_kernels.units import significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import Control, DrawnView
from fa_kernels.widgets.finite_differences import STEP, central_differences
from fa_kernels.widgets.headline import ERROR, Headline
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.seed import MAX_SEED, checked_seed
from fa_kernels.widgets.text import html_table, labels, scientific

VARIANT = "flash_q_outer"
SEQLENS, HEAD_DIMS = (2, 4, 8, 12, 16, 24, 32, 48), (1, 2, 4, 8, 16)
#: Largest difference that passes, as a share of the largest gradient (or of 1).
LIMIT = 1e-6
DROPOUT_P = 0.25
#: Kind of mask -> options of the front door, apart from those that depend on N.
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "dropout": {"dropout_p": DROPOUT_P},
    "causal_dropout": {"causal": True, "dropout_p": DROPOUT_P},
}

Array = np.ndarray


@dataclass(frozen=True)
class Chosen:
    """What is checked: one head of N rows and keys, a kind of mask, and the random numbers."""

    N: int
    d: int
    kind: str
    seed: int

    @classmethod
    def of(cls, N: object, d: object, kind: object, seed: object) -> Chosen:
        """Checked arguments.

        Raises:
            ValueError: a bad value; value, limit and remedy.
        """
        if kind not in KINDS:
            known = ", ".join(map(repr, KINDS))
            raise ValueError(f"kind = {kind!r} is not known: use one of {known}.")
        return cls(checked_rows(N), checked_dim(d), str(kind), checked_seed(seed))

    @property
    def tiling(self) -> Tiling:
        """Tiles that cut N into several, and do not divide it as a rule."""
        return Tiling(max(1, self.N // 3), max(1, self.N // 2 - 1))

    @property
    def options(self) -> dict[str, Any]:
        """Options of `attention` and `attention_backward` alike."""
        drawn = {"seed": self.seed} if "dropout_p" in KINDS[self.kind] else {}
        return {**KINDS[self.kind], **drawn, "variant": VARIANT, "tiling": self.tiling}

    def inputs(self) -> tuple[Array, Array, Array, Array]:
        """q, k, v and d_out, (1, 1, N, d) float64, rounded to numbers that fp16 has, too."""
        rng = np.random.default_rng(self.seed)
        drawn = (rng.standard_normal((1, 1, self.N, self.d)) for _ in range(4))
        q, k, v, d_out = (x.astype(np.float16).astype(np.float64) for x in drawn)
        return q, k, v, d_out


def checked_rows(value: object) -> int:
    """N as an int, or a ValueError that says what it must be."""
    return checked_int("N", value, 1, 64, "Every entry takes two forward passes: 16 is plenty.")


def checked_dim(value: object) -> int:
    """d as an int, or a ValueError that says what it must be."""
    return checked_int("d", value, 1, 32, "Every entry takes two forward passes: 4 is plenty.")


def by_differences(chosen: Chosen) -> tuple[Array, Array, Array]:
    """dq, dk, dv of sum(out * d_out) by central differences of `attention` itself.

    Every perturbed copy is a batch entry. Dropout draws by batch entry, so here the mask that it
    draws for the first is given to all.
    """
    q, k, v, d_out = chosen.inputs()
    options = chosen.options
    if options.pop("seed", None) is not None:
        places = np.arange(chosen.N)
        options["dropout_keep"] = dropout_keep(DROPOUT_P, chosen.seed, 0, 0, places, places)

    def loss(q: Array, k: Array, v: Array) -> Array:
        out = attention(q, k, v, **options)
        return np.asarray((out * d_out).sum(axis=(1, 2, 3)))

    return central_differences(loss, q, k, v)


def by_backward(chosen: Chosen, dtype: Any = np.float64, delta: bool = True) -> list[Array]:
    """dq, dk, dv of `attention_backward` in a dtype, as float64.

    Without `delta` the pass is made wrong on purpose: out = 0 makes delta = rowsum(d_out * out) 0.
    """
    q, k, v, d_out = (x.astype(dtype) for x in chosen.inputs())
    out, lse = attention(q, k, v, return_lse=True, **chosen.options)
    out = out if delta else np.zeros_like(out)
    found = attention_backward(d_out, q, k, v, out, lse, **chosen.options)
    return [gradient.astype(np.float64) for gradient in found]


def check(chosen: Chosen) -> Mapping[str, Errors]:
    """For dq, dk and dv: errors in float64, in fp16, and of a pass that is wrong on purpose."""
    truth = by_differences(chosen)
    passes = [
        by_backward(chosen),
        by_backward(chosen, np.float16),
        by_backward(chosen, delta=False),
    ]
    found = {}
    for i, name in enumerate(NAMES):
        largest = float(np.abs(truth[i]).max())
        fp64, wrong = (float(np.abs(passes[j][i] - truth[i]).max()) for j in (0, 2))
        # The differences have errors of their own: fp16 is held against the float64 backward.
        fp16 = float(np.abs(passes[1][i] - passes[0][i]).max())
        found[name] = Errors(largest, fp64, fp16, wrong, LIMIT * max(1.0, largest))
    return found


def takeaway(chosen: Chosen, found: Mapping[str, Errors]) -> str:
    """Passed or not, by how much, what the check would see, and what fp16 costs."""
    text = labels("gradient_check")
    worst = max(found.values(), key=lambda e: e.fp64 / e.limit)
    said = text["passed" if all(e.ok for e in found.values()) else "failed"].format(
        entries=3 * chosen.N * chosen.d, error=scientific(worst.fp64),
        limit=scientific(worst.limit),
    )  # fmt: skip
    seen = [name for name, e in found.items() if e.catches]
    words = text["caught"].format(
        names=" and ".join(text["tensors"][n] for n in seen),
        error=significant(max(e.wrong for e in found.values()), 2),
    ) if seen else text["not_caught"]  # fmt: skip
    fp16 = text["fp16"].format(error=scientific(max(e.fp16 for e in found.values())))
    return f"{said} {words} {fp16}"


def errors_table(chosen: Chosen, found: Mapping[str, Errors]) -> str:
    """The numbers behind the figure, one row per gradient, as HTML."""
    text = labels("gradient_check")
    columns = ("gradient", "largest", "error", "limit", "verdict", "error_wrong", "error_fp16")
    body = [
        [
            text["tensors"][name], f"{e.largest:.3g}", scientific(e.fp64), scientific(e.limit),
            text["within" if e.ok else "beyond"], scientific(e.wrong), scientific(e.fp16),
        ]
        for name, e in found.items()
    ]  # fmt: skip
    tiling = chosen.tiling
    caption = text["caption"].format(
        N=chosen.N, head_dim=chosen.d, kind=text["kinds"][chosen.kind], step=f"{STEP:g}",
        tiles=f"{tiling.block_m} × {tiling.block_n}", seed=chosen.seed,
        forwards=2 * 3 * chosen.N * chosen.d,
    )  # fmt: skip
    head = [text[name] for name in columns]
    return html_table("gradient-check", caption, head, body, "falab-table falab-dense falab-ways")


class GradientCheck(DrawnView):
    """The check of one chosen problem; `errors` holds its numbers."""

    section, mark = "gradient_check", "gradients"
    errors: Mapping[str, Errors]

    def __init__(self, chosen: Chosen) -> None:
        text = labels(self.section)
        words = labels("explorer")
        self._seed = self._opening_seed = chosen.seed
        self.seqlen = Knob(
            check=checked_rows, label=words["seqlen"], description=words["seqlen_description"],
            unit=words["seqlen_unit"], values=list(SEQLENS), value=chosen.N,
        )  # fmt: skip
        self.head_dim = Knob(
            check=checked_dim, label=words["head_dim"], description=words["head_dim_description"],
            values=list(HEAD_DIMS), value=chosen.d,
        )  # fmt: skip
        kinds = [(text["kinds"][kind], kind) for kind in KINDS]
        self.kind = Choice(text["kind"], kinds, chosen.kind)
        self.run = ipywidgets.Button(description=text["run"], button_style="primary")
        self.run.add_class("falab-run")
        self.run.layout.width = "auto"
        self.run.on_click(lambda button: self.again())
        super().__init__(chosen, (self.seqlen, self.head_dim, self.kind), [self.run])

    @property
    def setting(self) -> Chosen:
        """What the controls show now."""
        return Chosen(self.seqlen.value, self.head_dim.value, self.kind.value, self._seed)

    def restore(self, values: Mapping[Control, Any]) -> None:
        """The random numbers belong to the setting, too."""
        super().restore(values)
        self._seed = self._opening_seed

    def again(self) -> None:
        """The same check with other random numbers."""
        self._seed = (self._seed + 1) % (MAX_SEED + 1)
        self.update()

    def headline(self) -> Headline:
        """The errors of every gradient that the sentence tells the largest of."""
        found: dict[str, tuple[float | None, str]] = {}
        for name, e in self.errors.items():
            for kind, error in (("fp64", e.fp64), ("fp16", e.fp16)):
                words = f"{self.text['tensors'][name]}, {self.text['legend'][kind]}"
                found[words] = (error, ERROR)
        return found

    def draw(self, setting: Chosen, stamp: float) -> None:
        """Run the check and show it."""
        self.errors = check(setting)
        said = takeaway(setting, self.errors)
        alt = self.text["figure"].format(sentence=said)
        table = errors_table(setting, self.errors)
        self.show(gradient_errors_spec(self.errors, self.text), alt, said, table, stamp)


def gradient_check(
    N: int = 16, d: int = 4, kind: str = "causal_dropout", *, seed: int = 0
) -> GradientCheck:
    """dq, dk, dv of the flash backward against central differences of the loss sum(out * d_out).

    Executed in NumPy: in float64 against the differences, in fp16 against float64, and once with
    delta left out, to show that the check can fail. It runs again at every change.

    Args:
        N, d: one head of N rows and keys, at most 64, of dimension d, at most 32.
        kind: "none", "causal", "window", "dropout" or "causal_dropout".
        seed: of the inputs and of dropout, 0 to 2^32 - 1.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    return GradientCheck(Chosen.of(N, d, kind, seed))
