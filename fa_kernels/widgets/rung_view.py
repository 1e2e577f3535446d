"""A drawn view of the ladder as it is compiled, for one dtype, head dimension and architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.cuda.compiled import REFRESH
from fa_kernels.figures.rungs import Rung, outdated, rungs, sources
from fa_kernels.measure.compiled_run import ARCHS, DTYPES, HEAD_DIMS, PASSES
from fa_kernels.problem import DTYPE_FROM_SHORT, SHORT_DTYPE, dtype_name
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import Control, DrawnView
from fa_kernels.widgets.text import labels


@dataclass(frozen=True)
class Compiled:
    """What the controls show: head dimension, dtype by its short name, architecture, pass."""

    d: int
    dtype: str
    arch: int
    pass_: str = "fwd"

    @classmethod
    def of(cls, d: object, dtype: object, arch: object, pass_: object = "fwd") -> Compiled:
        """Checked arguments; `arch` is 90 or "sm_90", `pass_` "fwd" or "bwd".

        Raises:
            ValueError: something of which no build is kept; value, limit and remedy.
        """
        number = str(arch).removeprefix("sm_")
        short = SHORT_DTYPE[dtype_name(dtype)]
        shorts = [SHORT_DTYPE[name] for name in DTYPES]
        for name, value, known in (
            ("d", d, HEAD_DIMS), ("dtype", short, shorts),
            ("arch", number, list(map(str, ARCHS))), ("pass_", pass_, PASSES),
        ):  # fmt: skip
            if value not in known:
                offered = ", ".join(map(str, known))
                raise ValueError(f"{name} = {value!r} is not among the builds: use {offered}.")
        return cls(int(str(d)), short, int(number), str(pass_))

    @property
    def rungs(self) -> list[Rung]:
        """Every rung so compiled."""
        return rungs(DTYPE_FROM_SHORT[self.dtype], self.d, self.arch, self.pass_)


class RungView(DrawnView):
    """A `DrawnView` of one `Compiled`."""

    def __init__(self, setting: Compiled, controls: Sequence[Control] = ()) -> None:
        """`controls` stand before those of the build."""
        text = labels("rungs")
        passes = [(text["passes"][name], name) for name in PASSES]
        self.pass_ = Choice(text["pass"], passes, setting.pass_)
        shorts = [SHORT_DTYPE[name] for name in DTYPES]
        self.head_dim = Choice(text["head_dim"], [(str(d), d) for d in HEAD_DIMS], setting.d)
        self.dtype = Choice(text["dtype"], [(name, name) for name in shorts], setting.dtype)
        gpus = [(text["archs"][f"sm_{arch}"], arch) for arch in ARCHS]
        self.arch = Choice(text["arch"], gpus, setting.arch)
        choices = (self.pass_, self.head_dim, self.dtype, self.arch)
        super().__init__(setting, (*controls, *choices))

    @property
    def setting(self) -> Compiled:
        """What the controls show now."""
        where = (self.head_dim.value, self.dtype.value, self.arch.value)
        return Compiled(*where, self.pass_.value)

    def caption(self, setting: Compiled, found: Sequence[Rung]) -> str:
        """What was compiled, where the numbers come from, and what is missing or out of date."""
        text = labels("rungs")
        said = text["caption"].format(
            d=setting.d, dtype=setting.dtype, arch=f"sm_{setting.arch}",
            pass_=text["passes"][setting.pass_],
            sources="; ".join(sources(found)) or text["nothing"],
        )  # fmt: skip
        absent = [rung for rung in found if rung.build is None]
        refused = [
            r.name for r in absent if DTYPE_FROM_SHORT[setting.dtype] not in r.variant.dtypes
        ]
        unknown = [r.name for r in absent if r.name not in refused]
        if refused:
            said += " " + text["no_dtype"].format(names=", ".join(refused), dtype=setting.dtype)
        if unknown:
            said += " " + text["absent"].format(names=", ".join(unknown), command=REFRESH)
        if old := outdated(found):
            said += " " + text["outdated"].format(names=", ".join(old), command=REFRESH)
        return said
