"""Runs on disk: what is written is read back, and every fault names file, line and remedy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.block_mask import BlockMask
from fa_kernels.measure import records
from fa_kernels.measure.records import (
    COLUMNS,
    RUN_KEYS,
    RUN_KINDS,
    RecordError,
    Row,
    append_rows,
    list_runs,
    load_run,
    mask_text,
    row_fault,
)
from tests.measure.rows import REFUSED, ROW, RUN_ID, row, write_run
from tests.reference.problems import bounded

REMEDY = r"restore it with `git checkout data/measured`, or choose another run\.$"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """load_run remembers runs; a damaged copy must be read again."""
    load_run.cache_clear()
    yield
    load_run.cache_clear()


def refused(root: Path, run_id: str = RUN_ID) -> str:
    load_run.cache_clear()
    with pytest.raises(RecordError) as error:
        load_run(run_id, root)
    text = str(error.value)
    assert re.search(REMEDY, text), text
    return text


def test_columns_are_the_published_ones() -> None:
    assert ",".join(COLUMNS) == (
        "provider,variant,pass,dtype,batch,nheads,nheads_kv,seqlen_q,seqlen_k,head_dim,causal,"
        "dropout_p,density,block_m,block_n,metric,unit,p20,median,p80,n,status,detail,max_abs_err,"
        "block_mask,inputs"
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rows = [
        ROW,
        REFUSED,
        row(block_m=None, block_n=None, provider="torch_flash", variant="sdpa"),
        row(metric="hbm_q_bytes", unit="B", p20=10, median=10, p80=10, n=1),
        row(detail='commas, "quotes"\nand a line', causal="bottom_right"),
    ]
    write_run(tmp_path, rows)
    run = load_run(RUN_ID, tmp_path)
    assert run.rows == tuple(rows)
    assert (run.run_id, run.device) == (RUN_ID, "NVIDIA H200")


def test_large_byte_counts_are_exact(tmp_path: Path) -> None:
    nbytes = 2**45 + 1
    write_run(tmp_path, [row(metric="hbm_bytes", unit="B", p20=nbytes, median=nbytes, p80=nbytes)])
    assert load_run(RUN_ID, tmp_path).rows[0].median == nbytes


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(texts, st.floats(1e-6, 1e6), st.one_of(st.none(), st.integers(1, 4096)))
@bounded
def test_any_text_and_number_survives(detail: str, median: float, block: int | None) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        load_run.cache_clear()
        numbers = {"p20": median, "median": median, "p80": median}
        write_run(Path(folder), [row(detail=detail, block_m=block, **numbers)])
        (back,) = load_run(RUN_ID, Path(folder)).rows
    assert (back.detail, back.block_m) == (detail, block)
    assert back.median == pytest.approx(median, rel=1e-5)


def test_appending_keeps_what_is_there(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW])
    before = (folder / "rows.csv").read_bytes()
    append_rows(folder, [REFUSED])
    assert (folder / "rows.csv").read_bytes().startswith(before)
    assert load_run(RUN_ID, tmp_path).rows == (ROW, REFUSED)


def test_a_refused_row_writes_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW])
    before = (folder / "rows.csv").read_bytes()
    with pytest.raises(RecordError, match="refusing to record .*not checked against float64"):
        append_rows(folder, [REFUSED, row(max_abs_err=None)])
    assert (folder / "rows.csv").read_bytes() == before


def test_select_and_values(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW, row(seqlen_q=128), row(seqlen_q=256, block_m=None), REFUSED])
    run = load_run(RUN_ID, tmp_path)
    assert run.select(status="refused") == [REFUSED]
    assert run.values("seqlen_q", status="ok") == [128, 256, 4096]
    assert run.values("block_m") == [64]
    assert run.select(provider="nobody") == [] == run.values("head_dim", provider="nobody")


# -- rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "good",
    [ROW, REFUSED, row(median=1e-3, p20=1e-3, p80=1e-3), row(metric="peak_mem_bytes", unit="B"),
     row(metric="hbm_lse_bytes", unit="B", max_abs_err=None), row(pass_="decode"),
     row(metric="dram_bytes", unit="B"), row(metric="ncu_latency_ms"),
     row(metric="l2_hit_pct", unit="%", p80=100.0)],
)  # fmt: skip
def test_good_rows_have_no_fault(good: Row) -> None:
    assert row_fault(good) is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"status": "fine"}, "status = 'fine' is not one of"),
        ({"pass_": "forward"}, "pass = 'forward' is not one of"),
        ({"dtype": "fp16"}, "dtype = 'fp16' is not one of"),
        ({"metric": "speed"}, "metric 'speed' with unit 'ms' is not known"),
        ({"unit": "s"}, "metric 'latency_ms' with unit 's' is not known"),
        ({"metric": "hbm_bytes"}, "metric 'hbm_bytes' with unit 'ms'"),
        ({"metric": "dram_bytes"}, "metric 'dram_bytes' with unit 'ms'"),
        ({"metric": "dram_q_bytes", "unit": "B"}, "metric 'dram_q_bytes' with unit 'B'"),
        ({"metric": "sm_pct", "unit": "%", "p80": 100.5}, "100.5 is more than 100 %"),
        ({"metric": "ncu_latency_ms", "max_abs_err": None}, "a counter without max_abs_err"),
        ({"median": None}, "status is ok but there is no median"),
        ({"median": -1.0}, "status is ok but there is no median"),
        ({"max_abs_err": None}, "a timing without max_abs_err: it was not checked"),
        ({"status": "failed"}, "status is 'failed' but there is a median"),
        ({"median": math.nan}, "nan is not a finite number"),
        ({"p80": math.inf}, "inf is not a finite number"),
        ({"max_abs_err": math.nan}, "nan is not a finite number"),
    ],
)
def test_a_bad_row_is_refused_in_words(changed: dict[str, Any], sentence: str) -> None:
    fault = row_fault(row(**changed))
    assert fault is not None and sentence in fault


def test_a_row_that_cannot_be_read_is_never_written(tmp_path: Path) -> None:
    """NaN in one row would make the whole append-only run unreadable for good."""
    folder = write_run(tmp_path, [ROW])
    with pytest.raises(RecordError, match="refusing to record"):
        append_rows(folder, [row(median=math.nan)])
    assert load_run(RUN_ID, tmp_path).rows == (ROW,)


# -- damaged rows.csv -----------------------------------------------------------------------


def spoil(root: Path, old: str, new: str) -> None:
    path = root / RUN_ID / "rows.csv"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("fwd,float16", "fwd,float8", "line 2: dtype = 'float8' is not one of"),
        (",4096,", ",many,", "line 2: seqlen_q = 'many' is not of type int"),
        (",4096,", ",4096.5,", "line 2: seqlen_q = '4096.5' is not of type int"),
        (",4096,", ",,", "line 2: seqlen_q = '' is not of type int"),
        (",1.5,", ",nan,", "line 2: median = 'nan' is not of type float"),
        (",1.5,", ",inf,", "line 2: median = 'inf' is not of type float"),
        (",1.5,", ",fast,", "line 2: median = 'fast' is not of type float"),
        (",1.5,", ",,", "line 2: status is ok but there is no median"),
        (",ok,", ",good,", "line 2: status = 'good' is not one of"),
        (",ok,", ",failed,", "line 2: status is 'failed' but there is a median"),
        ("checked,0.000125", "checked,", "line 2: a timing without max_abs_err"),
        ("checked,0.000125", "checked", "line 2: inputs = None is not"),
        ("checked,0.000125", "checked,0.000125,7", "line 2: more cells than columns"),
        (",ms,", ",us,", "line 2: metric 'latency_ms' with unit 'us' is not known"),
        ("provider,", "who,", "has other columns than provider, variant, pass"),
        (",max_abs_err", "", "has other columns than"),
        (",max_abs_err", ",max_abs_err,extra", "has other columns than"),
        ("status,detail", "detail,status", "has other columns than"),
    ],
)
def test_a_damaged_row_is_named_by_file_and_line(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    write_run(tmp_path, [ROW, REFUSED])
    spoil(tmp_path, old, new)
    text = refused(tmp_path)
    assert f"{RUN_ID}/rows.csv" in text and fault in text


def test_the_line_of_a_later_row_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW, row(detail="two\nlines"), row(batch=8)])
    spoil(tmp_path, ",8,32,32,", ",-,32,32,")
    assert "rows.csv line 5: batch = '-'" in refused(tmp_path)  # the second row takes two lines


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\x00", b"PK\x03\x04 not a table", b"\n\n", b"provider\n"],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = write_run(tmp_path, [ROW])
    (folder / "rows.csv").write_bytes(content)
    assert f"{RUN_ID}/rows.csv" in refused(tmp_path)


def test_bytes_that_are_no_text_in_the_middle_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW] * 3)
    with (folder / "rows.csv").open("ab") as file:
        file.write(b"\xff\xff\n")
    assert f"{RUN_ID}/rows.csv cannot be read" in refused(tmp_path)


def test_a_cell_of_megabytes_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW])
    with (folder / "rows.csv").open("a") as file:
        file.write('"' + "x" * 200_000 + '"\n')
    assert f"{RUN_ID}/rows.csv cannot be read" in refused(tmp_path)


def test_a_run_without_rows_csv_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW])
    (folder / "rows.csv").unlink()
    assert f"{RUN_ID}/rows.csv cannot be read" in refused(tmp_path)


# -- damaged run.json -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[]", "lacks all"),
        (b"3", "lacks all"),
        (b"{}", "lacks schema, run_id"),
    ],
)
def test_a_damaged_run_json_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    folder = write_run(tmp_path, [ROW])
    (folder / "run.json").write_bytes(content)
    text = refused(tmp_path)
    assert text.startswith(f"{RUN_ID}/run.json") and fault in text


@pytest.mark.parametrize("key", RUN_KEYS)
def test_a_run_must_say_everything_about_itself(tmp_path: Path, key: str) -> None:
    folder = write_run(tmp_path, [ROW])
    about = json.loads((folder / "run.json").read_text())
    del about[key]
    (folder / "run.json").write_text(json.dumps(about))
    assert f"lacks {key};" in refused(tmp_path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW], schema=99)
    assert "has schema 99, this version reads 1" in refused(tmp_path)


def test_a_renamed_folder_is_noticed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ROW])
    folder.rename(tmp_path / "20260102-h100-test")
    assert f"calls itself '{RUN_ID}'" in refused(tmp_path, "20260102-h100-test")


@pytest.mark.parametrize("run_id", ["latest", "20260102-H200-test", "2026-h200-a", "20260102-h200"])
def test_run_ids_have_one_form(tmp_path: Path, run_id: str) -> None:
    write_run(tmp_path, [ROW], run_id)
    assert "calls itself" in refused(tmp_path, run_id)


@pytest.mark.parametrize("kind", ["timings", None, 5, ["grid"]])
def test_a_run_is_of_a_known_kind(tmp_path: Path, kind: Any) -> None:
    write_run(tmp_path, [ROW], kind=kind)
    assert f"has kind {kind!r}, not one of {RUN_KINDS}" in refused(tmp_path)


def test_a_run_without_a_kind_is_the_grid(tmp_path: Path) -> None:
    write_run(tmp_path, [ROW])
    assert load_run(RUN_ID, tmp_path).kind == "grid"


# -- which runs there are -------------------------------------------------------------------


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for run_id in ("20260102-h200-a", "20260301-t4-a", "20251231-h200-b"):
        write_run(tmp_path, [ROW], run_id)
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "a file").write_text("")
    assert list_runs(tmp_path) == ["20260301-t4-a", "20260102-h200-a", "20251231-h200-b"]
    assert list_runs(tmp_path / "nothing") == []


def test_a_run_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    assert "no recorded run '20260102-h200-test' (recorded: none)" in refused(tmp_path)
    write_run(tmp_path, [ROW], "20260301-t4-a")
    assert "(recorded: 20260301-t4-a)" in refused(tmp_path)


def test_the_default_folder_is_the_repositorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MEASURED_DIR", tmp_path)
    write_run(tmp_path, [ROW])
    calls: list[Callable[[], Any]] = [list_runs, lambda: load_run(RUN_ID).run_id]
    assert [call() for call in calls] == [[RUN_ID], RUN_ID]


# -- block masks ----------------------------------------------------------------------------------


def test_a_masked_row_gives_its_problem_back(tmp_path: Path) -> None:
    mask = BlockMask.pattern("butterfly", 4096, 4096, 64, 128, 1 / 6)
    problem = replace(ROW.problem, block_mask=mask)
    masked = row(density=mask.density, block_mask=mask_text(problem))
    write_run(tmp_path, [masked])
    (again,) = load_run(RUN_ID, tmp_path).rows
    assert again.block_mask == "butterfly 64x128"
    assert again.problem.block_mask == mask and ROW.problem.block_mask is None


def test_a_mask_that_would_not_come_back_is_not_written() -> None:
    keep = np.eye(64, 32, dtype=bool)
    for name in ("", "mine", "random"):
        problem = replace(ROW.problem, block_mask=BlockMask(keep, 64, 128, name))
        with pytest.raises(RecordError, match="is not what BlockMask.pattern makes"):
            mask_text(problem)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"block_mask": "local 0x0", "density": 0.5}, "hold nothing"),
        ({"causal": "sideways"}, "is not one of none"),
        ({"block_mask": "striped 64x64", "density": 0.5}, "is not a pattern and its block size"),
        ({"block_mask": "local 64", "density": 0.5}, "is not a pattern and its block size"),
        ({"density": 0.5}, "without a block mask"),
        ({"density": 0.0, "block_mask": "local 64x64"}, "out of range"),
    ],
)
def test_a_mask_that_says_too_little_is_refused(changes: dict[str, Any], fault: str) -> None:
    assert fault in str(row_fault(row(**changes)))


@pytest.mark.parametrize(
    ("late", "needs"),
    [
        (("block_mask", "inputs"), {"density": 0.5, "block_mask": "local 64x64"}),
        (("inputs",), {"inputs": "outliers"}),
    ],
)
def test_runs_from_before_a_column_are_read_and_go_on_without_it(
    late: tuple[str, ...], needs: dict[str, Any], tmp_path: Path
) -> None:
    write_run(tmp_path, [ROW])
    path = tmp_path / RUN_ID / "rows.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [line.rsplit(",", len(late))[0] for line in lines]
    assert lines[0].split(",") == list(COLUMNS[: -len(late)])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    load_run.cache_clear()
    assert load_run(RUN_ID, tmp_path).rows == (ROW,)
    append_rows(tmp_path / RUN_ID, [row(seqlen_q=512, seqlen_k=512)])
    load_run.cache_clear()
    assert len(load_run(RUN_ID, tmp_path).rows) == 2
    with pytest.raises(RecordError, match=f"was begun before runs held {late[0]}"):
        append_rows(tmp_path / RUN_ID, [row(**needs)])
    path.write_text(f"{lines[0]}\n{lines[1]},too much\n", encoding="utf-8")
    load_run.cache_clear()
    with pytest.raises(RecordError, match="line 2: more cells than columns"):
        load_run(RUN_ID, tmp_path)
