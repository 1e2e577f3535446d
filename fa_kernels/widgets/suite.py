"""Every figure of the notebooks as it opens there, in one list, and how to write them all."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fa_kernels.figures.figure_files import checked_formats, checked_width, save_figure
from fa_kernels.figures.provenance import Provenance
from fa_kernels.session import Session

if TYPE_CHECKING:
    from fa_kernels.widgets.live_figure import LiveFigure


@dataclass(frozen=True)
class SuiteFigure:
    """A figure of a notebook: `fa.<function>(*args, **kwargs)`; `name` is that of its files.

    `recorded`: without a recorded run there is nothing in it but the sentence that says so.
    """

    name: str
    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    recorded: bool = False

    def widget(self) -> Any:
        """What the notebook's cell shows."""
        # By name, because the package itself stands above this layer.
        return getattr(sys.modules["fa_kernels"], self.function)(*self.args, **self.kwargs)


def _figure(name: str, function: str, *args: Any, **kwargs: Any) -> SuiteFigure:
    return SuiteFigure(name, function, args, kwargs)


def _recorded(name: str, function: str, *args: Any, **kwargs: Any) -> SuiteFigure:
    return SuiteFigure(name, function, args, kwargs, recorded=True)


#: In the order of the notebooks; a figure that stands in two is listed with the first.
FIGURES = (
    _figure("00_story", "story", N=4096, d=64, M_kib=64),
    _figure("01_memory_levels", "memory_levels"),
    _figure("01_what_fits", "what_fits", N=4096, d=64),
    _figure("01_roofline", "roofline", N=4096, d=64),
    _figure("02_softmax_failures", "softmax_failures"),
    _recorded("02_numerics", "numerics", inputs="normal"),
    _figure("03_explorer", "explorer"),
    _figure("04_traffic_ways", "traffic_ways", N=4096, d=64, M_kib=64),
    _figure("04_lower_bound", "lower_bound", N=4096, d=64),
    _figure("04_crossing", "crossing", N=4096, d=64),
    _recorded("04_loop_order", "loop_order", d=64, M_kib=64),
    _figure("04_o_drift", "o_drift", keys=4096),
    _figure("05_resources", "resources", d=64),
    _figure("05_instruction_mix", "instruction_mix", d=64),
    _recorded("05_ladder", "ladder", N=4096, d=64),
    _recorded("05_speed", "speed", d=64),
    _recorded("05_peers", "peers", d=128),
    _recorded("05_utilisation", "utilisation", N=4096, d=64),
    _recorded("05_run_comparison", "compare_runs"),
    _figure("06_saved_memory", "saved_memory", d=64, heads=2),
    _figure("06_recompute_cost", "recompute_cost", N=4096, d=64),
    _figure("06_gradient_check", "gradient_check", N=16, d=4, kind="causal_dropout"),
    _figure("06_dropout_mask", "dropout_mask", p=0.2, seed=0, block_m=8, block_n=16),
    _recorded("06_speed", "speed", d=64, pass_="bwd"),
    _recorded("07_sparse_speed", "sparse_speed", N=8192, d=128),
    _figure("07_sparse_quality", "sparse_quality"),
    _figure("07_figure2_right", "paper_results", "fig. 2 right"),
    _figure("08_regimes", "regimes", "llama-3-8b", tokens=8192, batch=16),
    _recorded("08_generation", "generation"),
    _figure("08_cache_memory", "cache_memory", "llama-3-8b", tokens=8192, batch=16),
    _figure("08_split_kv", "split_kv", num_splits=4, keys=120),
    _figure("08_fragmentation", "fragmentation", page_size=16),
    _figure("08_batching", "batching", per_s=40, cache_gib=2),
    _figure("09_table21", "paper_results", "table 21"),
    _figure("09_table9", "paper_results", "table 9"),
    _figure("09_figure2_left", "paper_results", "fig. 2 left"),
    _figure("09_figure2_left_bytes", "paper_results", "fig. 2 left, bytes"),
    _figure("09_figure2_middle", "figure2_middle"),
    _figure("09_figure2_right_bytes", "paper_results", "fig. 2 right, bytes"),
    _figure("09_fa2_figures4-7", "paper_results", "FA2 figs. 4-7"),
    _figure("09_fa3_figures5-7", "paper_results", "FA3 figs. 5-7"),
)


@dataclass(frozen=True)
class Written:
    """What came of one figure: "written", "skipped" or "failed", and a sentence on it.

    `missing` says which formats need a browser that is not here, `cramped` that the figure is made
    for more width; else they are empty.
    """

    figure: SuiteFigure
    state: str
    said: str
    missing: str = ""
    cramped: str = ""


def live_figures(widget: Any) -> list[LiveFigure]:
    """The live figures of a widget, from top to bottom; [] for what shows none."""
    if hasattr(widget, "spec") and hasattr(widget, "export"):
        return [widget]
    return [figure for child in getattr(widget, "children", ()) for figure in live_figures(child)]


def write_all(
    used: Session,
    folder: Path,
    venue: str | None = None,
    formats: Sequence[str] | None = None,
    command: str | None = None,
    figures: Sequence[SuiteFigure] = FIGURES,
) -> Iterator[Written]:
    """Write each figure as `save_figure` does, files of its name replaced; one result for each.

    Args:
        used: whose recorded runs are shown: the current session, as `fa.session` returned it.
        folder, venue, formats, command: as `save_figure`.
        figures: which; default: every one.

    Raises:
        ValueError: a venue or format that is not known, before anything is drawn.
    """
    checked_width(venue), checked_formats(formats)
    return (_write(one, used, folder, venue, formats, command) for one in figures)


def _write(
    one: SuiteFigure,
    used: Session,
    folder: Path,
    venue: str | None,
    formats: Sequence[str] | None,
    command: str | None,
) -> Written:
    try:
        (live,) = live_figures(one.widget())
        shown = live.export.shown()
        if one.recorded and not Provenance.of(shown).run_ids:
            return Written(one, "skipped", shown.sentence or shown.alt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is missing is in the result
            saved = save_figure(
                shown, one.name, venue, folder=folder, formats=formats, overwrite=True,
                command=command, root=used.root,
            )  # fmt: skip
    except Exception as error:  # the others are still wanted
        return Written(one, "failed", f"{type(error).__name__}: {error}")
    names = ", ".join(path.name for path in saved.files)
    return Written(one, "written", names, saved.missing, saved.cramped)
