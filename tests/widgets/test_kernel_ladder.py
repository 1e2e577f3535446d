"""The widgets of 05: what they say follows from the compiled code and from what was recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.cuda.compiled import Build, CompiledLaunch
from fa_kernels.cuda.kernel_file import files_of
from fa_kernels.figures import rungs as rungs_module
from fa_kernels.figures.rungs import Rung, in_rung_order
from fa_kernels.measure import compiled_run
from fa_kernels.measure.compiled_run import Shipped
from fa_kernels.session import Session, session
from fa_kernels.units import significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets import compiled_check, resources, roofline, rung_view
from fa_kernels.widgets.rung_ideas import IDEAS, Idea, ideas_of, place_of
from fa_kernels.widgets.text import labels
from tests.figures import synthetic_ceilings
from tests.figures.synthetic import RUN_ID, write_run
from tests.figures.synthetic_ceilings import RUN_ID as CEILINGS_RUN
from tests.figures.synthetic_ceilings import rate_of, write_ceilings_run
from tests.figures.synthetic_speed import write_speed_run

READER, RESOURCES, MIX = (labels(s) for s in ("rung_reader", "resources", "instruction_mix"))
LADDER, ROOFLINE, CHECK = (labels(s) for s in ("ladder", "roofline", "compiled_check"))


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("grid")
    write_run(root, head_dims=(64,), seqlens=(512, 4096))
    return session("numpy", root=root)


def plain(html: str) -> str:
    return re.sub("<[^>]*>", "", html)


# -- the rung reader -------------------------------------------------------------------------


@pytest.mark.parametrize("idea", IDEAS, ids=lambda idea: idea.key)
def test_every_anchor_is_in_its_source(idea: Idea) -> None:
    """A kernel was edited: move the anchor in widgets/rung_ideas.py to the line meant."""
    assert place_of(idea, files_of(idea.kernel)), f"no lines from {idea.start!r} to {idea.end!r}"


def test_every_idea_has_words_and_every_rung_an_idea() -> None:
    assert [idea.key for idea in IDEAS] == list(READER["ideas"])
    for variant in in_rung_order():
        assert ideas_of(variant.kernel), f"mark what {variant.kernel} changes in rung_ideas.py"


@pytest.mark.parametrize("variant", [v.name for v in in_rung_order()])
def test_a_rung_is_shown_with_its_marked_lines(variant: str) -> None:
    reader = fa.rung_reader(variant)
    kernel = VARIANTS[variant].kernel
    assert f"Rung {kernel[:2]}" in plain(reader.sentence.value)
    assert reader.excerpts.value.count('class="falab-idea"') == len(ideas_of(kernel))
    assert "falab-marked" in reader.excerpts.value
    assert READER["verdict"] in reader.about.value
    assert reader.file.value == f"{kernel}.cu" and "io.cuh" in reader.file.texts
    lines = len((files_of(kernel))[0].lines)
    assert reader.source.value.count('class="falab-line"') <= lines
    assert f"{lines} lines" in reader.source.summary


def test_choosing_another_rung_and_file() -> None:
    reader = fa.rung_reader("flash_q_outer")
    assert "Changed from 03" in reader.about.value
    reader.file.value = "tile.cuh"
    assert reader.source.summary.startswith("tile.cuh") and "product_tile" in reader.source.value
    reader.rung.value = "standard_naive"
    assert reader.file.value == "01_standard_naive.cu"
    assert "where the ladder starts" in reader.sentence.value
    assert "Changed from" not in reader.about.value
    assert "tile.cuh" not in reader.file.texts


def test_the_backward_can_be_read_where_its_lines_are_marked() -> None:
    reader = fa.rung_reader("flash_mma", pass_="bwd")
    kernel = "05_flash_mma_backward"
    assert plain(reader.sentence.value).startswith("Rung 05, backward pass, after 04: ")
    assert reader.excerpts.value.count('class="falab-idea"') == len(ideas_of(kernel)) > 0
    assert reader.file.value == f"{kernel}.cu" and "mma_backward.cuh" in reader.file.texts
    reader.pass_.value = "fwd"
    assert reader.file.value == "05_flash_mma.cu" and not reader.pass_.disabled
    reader.pass_.value = "bwd"
    reader.rung.value = "flash_q_outer"
    assert reader.file.value == "04_flash_q_outer.cu" and reader.pass_.disabled
    assert reader.pass_.texts == [READER["passes"]["fwd"]]
    reader.rung.value = "flash_mma"
    assert reader.pass_.value == "fwd" and len(reader.pass_.texts) == 2
    with pytest.raises(ValueError, match="pass_ = 'bwd' of 'flash_q_outer' has no marked lines"):
        fa.rung_reader("flash_q_outer", pass_="bwd")


def test_source_is_escaped() -> None:
    reader = fa.rung_reader("flash_q_outer")
    assert "load_tile&lt;BLOCK_M, ALIGNED&gt;" in reader.source.value


def test_a_control_has_no_rung_of_its_own() -> None:
    with pytest.raises(ValueError, match="use 'flash_kv_outer', whose kernel it is built from"):
        fa.rung_reader("flash_kv_outer_io")
    with pytest.raises(ValueError, match="is not known"):
        fa.rung_reader("flush")


# -- resources -------------------------------------------------------------------------------


def test_the_sentence_names_the_limiter() -> None:
    widget = fa.resources()
    said = plain(widget.sentence.value)
    assert "what runs out first" in said and RESOURCES["said_no_spills"] in said
    assert widget.figure.alt.startswith(said.replace("&#x27;", "'"))
    for variant in in_rung_order():
        assert variant.kernel[:2] in widget.table.value
    assert "recorded, NVRTC" in widget.table.value


def test_controls_compile_for_another_gpu_and_dtype() -> None:
    widget = fa.resources()
    before, table = widget.figure.spec, widget.table.value
    widget.arch.value = 80
    assert widget.table.value != table and "sm_80" in widget.table.value
    widget.dtype.value = "fp32"
    assert widget.figure.spec != before and not widget.figure.stale
    absent = [v for v in in_rung_order() if "float32" not in v.dtypes]
    assert ("Takes no fp32" in widget.table.value) == bool(absent)
    widget.head_dim.value = 128
    assert "d = 128, fp32, compiled for sm_80" in widget.table.value


def test_spills_are_named() -> None:
    launch = CompiledLaunch("flash_q_outer", 128, 255, 64, 0, 1024)
    build = Build("flash_q_outer", 90, "float16", 64, (64, 64), (launch,), "x")
    said = resources.takeaway([Rung(VARIANTS["flash_q_outer"], build)], 90)
    assert "found no register go through memory in rung 04" in said
    assert resources.takeaway([], 90) == RESOURCES["said_nothing"]


@pytest.mark.parametrize("make", [fa.resources, fa.instruction_mix])
def test_gradients_have_kernels_of_their_own(make: Any) -> None:
    view = make(d=128, pass_="bwd")
    assert "rung 06" in view.sentence.value and "backward pass" in view.table.value
    for kernel in ("flash_mma_backward", "flash_wgmma_backward"):
        assert f"{kernel}_keys" in view.table.value
    view.arch.value = 80  # which has no warpgroups
    assert "rung 05" in view.sentence.value and "flash_wgmma" not in view.table.value
    view.pass_.value = "fwd"
    assert "forward pass" in view.table.value and "backward" not in view.table.value
    with pytest.raises(ValueError, match="pass_ = 'both' is not among the builds: use fwd, bwd"):
        make(pass_="both")


def test_what_is_missing_or_old_is_in_the_caption(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build("flash_q_outer", 90, "float16", 64, (64, 64), (), "recorded", current=False)
    found = [Rung(VARIANTS["standard_tiled"], None), Rung(VARIANTS["flash_q_outer"], build)]
    monkeypatch.setattr(rung_view, "rungs", lambda dtype, d, arch, pass_: found)
    caption = plain(fa.resources().table.value)
    assert "Not recorded for this GPU: 02 standard" in caption
    assert "Changed since it was recorded: 04 flash" in caption and "--record" in caption


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"d": 80}, "d = 80 is not among the builds: use 64, 128"),
        ({"dtype": "bf16"}, "dtype = 'bf16' is not among the builds: use fp16, fp32"),
        ({"arch": "sm_61"}, "arch = '61' is not among the builds: use 80, 90"),
        ({"dtype": "int8"}, "int8"),
    ],
)
def test_what_is_not_kept_is_refused(arguments: dict[str, object], words: str) -> None:
    for widget in (fa.resources, fa.instruction_mix, fa.check_compiled):
        with pytest.raises(ValueError, match=words):
            widget(**arguments)


# -- instructions ----------------------------------------------------------------------------


def test_the_sentence_counts_the_loop() -> None:
    widget = fa.instruction_mix()
    said = plain(widget.sentence.value)
    assert "that multiplies" in said and "run on tensor cores" in said
    assert "FLOP on average for a warp" in said or MIX["said_no_tensor"] in said
    widget.part.value = "everything"
    assert plain(widget.sentence.value).startswith("Of all ")
    assert MIX["titles"]["everything"] in str(widget.figure.spec)


def test_a_launch_without_a_loop_says_so() -> None:
    assert MIX["no_loop"] in fa.instruction_mix().table.value


def test_another_part_is_refused() -> None:
    with pytest.raises(ValueError, match="part = 'all' is not known: use 'loops' or 'everything'"):
        fa.instruction_mix(part="all")


def test_without_any_build_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rung_view, "rungs", lambda dtype, d, arch, pass_: [])
    assert MIX["said_nothing"] in fa.instruction_mix().sentence.value
    assert RESOURCES["said_nothing"] in fa.resources().sentence.value


# -- the ladder and the roofline -------------------------------------------------------------


def test_the_ladder_says_what_each_step_bought(timed: Session) -> None:
    widget = fa.ladder(session=timed)
    said = plain(widget.sentence.value)
    assert said.startswith("From rung 01 to rung ") and "The largest step is rung 02" in said
    assert "The fastest peer, torch cuDNN" in said and "Slower here" in said
    assert RUN_ID in widget.table.value
    widget.seqlen.value = 333
    assert "No rung was recorded at N = 333" in widget.sentence.value
    assert "512, 4096" in widget.sentence.value
    widget.seqlen.value, widget.dtype.value = 512, "fp32"
    assert plain(widget.sentence.value).startswith("From rung 01") and not widget.figure.stale


def test_a_head_dim_without_times_names_those_that_have_some(timed: Session) -> None:
    for widget in (fa.ladder(session=timed), fa.roofline(session=timed)):
        widget.head_dim.value = 96
        assert "ecorded d: 64" in plain(widget.sentence.value)


def test_without_a_run_the_ladder_says_so(bare: Session) -> None:
    widget = fa.ladder(session=bare)
    assert "No rung was recorded" in widget.sentence.value and "none." in widget.sentence.value
    assert LADDER["not_recorded"] in widget.table.value
    assert ROOFLINE["said_nothing"] in fa.roofline(session=bare).sentence.value


def test_one_rung_alone_has_no_steps(tmp_path: Path) -> None:
    """As at a d that only the fast kernels were recorded at."""
    write_speed_run(tmp_path)
    widget = fa.ladder(d=256, session=session("numpy", root=tmp_path))
    said = plain(widget.sentence.value)
    assert said.startswith("Of the rungs only rung 05 was recorded here: ")
    assert (
        "Of the switches of rung 05, SWIZZLE is worth most: without it a call takes 5.50× as long."
        in said
    )
    assert "torch cuDNN" in said and "From rung" not in said


def test_every_rung_has_its_own_switch_that_is_worth_most() -> None:
    said = plain(fa.ladder(session=session("numpy")).sentence.value)  # the runs of this checkout
    of = said.partition("Of the switches of ")[2].partition(". The fastest")[0]
    assert of.startswith("rung 05, SWIZZLE is worth most: without it a call takes ")
    assert "as long; of those of rung 06, LAZY_RESCALE: " in of


def test_the_roofline_compares_with_the_right_peak(
    timed: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "tensor_cores", lambda arch: {})
    widget = fa.roofline(session=timed)
    said = plain(widget.sentence.value).replace("&#x27;", "'")
    assert "% of the peak of the H200 SXM's fp32 units (67)" in said
    assert "The fastest peer, torch cuDNN" in said and "% of the tensor cores" in said
    monkeypatch.setattr(roofline, "tensor_cores", lambda arch: dict.fromkeys(VARIANTS, True))
    said = plain(fa.roofline(session=timed).sentence.value)
    assert "tensor cores (990)" in said and ROOFLINE["said_slope"].split("}")[1] in said
    assert all(mark.counted_intensity for mark in widget.marks if not mark.at_most)


def test_the_roofline_names_the_run_of_its_measured_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "tensor_cores", lambda arch: {})
    write_run(tmp_path, head_dims=(64,), seqlens=(4096,))
    without = fa.roofline(session=session("numpy", root=tmp_path))
    assert "measure --ceilings" in without.table.value
    write_ceilings_run(tmp_path)
    widget = fa.roofline(session=session("numpy", root=tmp_path))
    assert f"Measured ceilings: {CEILINGS_RUN}." in widget.table.value
    said, before = plain(widget.sentence.value), plain(without.sentence.value)
    reached = significant(rate_of("fp32_fma"))
    assert f"Of the {reached} that multiply-adds alone reached" in said
    assert "measured" not in before and said.startswith(before.split(". ")[0])
    assert without.figure.spec != widget.figure.spec


@pytest.mark.parametrize(
    ("parts", "above"),
    [
        ({}, ""),
        ({"matmul_fp16": 0.2}, "said_above_flat"),
        ({"hbm_read": 1e-3, "hbm_copy": 1e-3}, "said_above_slope"),
    ],
)
def test_what_stands_above_the_measured_roof_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, float], above: str
) -> None:
    """No dashed line lies below a mark without a sentence that names the mark."""
    monkeypatch.setattr(roofline, "tensor_cores", lambda arch: {})
    for name, part in parts.items():
        monkeypatch.setitem(synthetic_ceilings.PART, name, part)
    write_run(tmp_path, head_dims=(64,), seqlens=(4096,))
    write_ceilings_run(tmp_path)
    said = plain(fa.roofline(session=session("numpy", root=tmp_path)).sentence.value)
    for name in ("said_above_flat", "said_above_slope"):
        begin, _, _ = ROOFLINE[name].partition("{names}")
        assert (begin in said) == (name == above)
        assert name != above or "torch cuDNN" in said.partition(begin)[2].partition(".")[0]
    assert ("cuBLAS (4096 × 4096 × 4096) is not the most" in said) == (above == "said_above_flat")


def test_tensor_cores_are_read_from_the_compiled_code() -> None:
    found = roofline.tensor_cores(90)
    assert set(found) == {v.name for v in in_rung_order()}
    assert found["flash_mma"] and not found["flash_q_outer"]


# -- the check -------------------------------------------------------------------------------


def test_formula_equals_what_is_asked_for() -> None:
    check = fa.check_compiled()
    formulas = [line for line in check.lines if line.formula_bytes is not None]
    assert len(formulas) == sum(v.tiled for v in in_rung_order())
    assert all(line.formula_bytes == line.recorded.smem_bytes for line in formulas)
    assert 'data-fa-table="compiled-check"' in check._repr_html_()


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_check, "can_compile", lambda: False)
    check = fa.check_compiled()
    assert check.ok and CHECK["no_compiler"] in str(check) and CHECK["not_here"] in str(check)


def test_a_difference_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CompiledLaunch("flash_q_outer", 128, 99, 0, 0, 1)
    monkeypatch.setattr(compiled_check, "can_compile", lambda: True)
    monkeypatch.setattr(compiled_check, "nvrtc_version", lambda: "99.9")
    monkeypatch.setattr(compiled_check, "_compiled_here", lambda shipped: [made] * 3)
    check = fa.check_compiled()
    assert not check.ok and "NVRTC 99.9: something differs" in check.caption()


def test_what_does_not_compile_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(plan: object, arch: int) -> None:
        raise RuntimeError("does not compile")

    monkeypatch.setattr(compiled_check, "can_compile", lambda: True)
    monkeypatch.setattr(compiled_run, "compile_plan", refuses)
    assert all(line.here is None for line in fa.check_compiled().lines)


def test_rungs_without_a_record_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shipped, "build", lambda self: None)
    assert fa.check_compiled().lines == [] and rungs_module.rungs("float16", 64, 90)
