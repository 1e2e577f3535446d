"""Published numbers: transcribed cell by cell, and a damaged file names line, fault and remedy."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.measure import paper
from fa_kernels.measure.paper import (
    CHOICES,
    COLUMNS,
    PAPER_DIR,
    PAPERS,
    PRINTED,
    READ_OFF,
    UNITS,
    UNREAD,
    PublishedRow,
    load_paper,
    row_fault,
    select,
)
from fa_kernels.measure.records import RecordError
from fa_kernels.problem import AttentionProblem

REMEDY = r"restore it with `git checkout data/paper`\.$"
PYTORCH, MEGATRON, FLASH = "PyTorch", "Megatron", "FlashAttention"
SPARSE = "block-sparse FlashAttention"

#: Table of appendix E.6 -> pass, key padding, dropout; cells of PyTorch, Megatron, FlashAttention
#: and block-sparse FlashAttention; sum of its numbers. From the transcription that the file was
#: made of, not from the file.
TABLES = {
    9: ("fwd", True, True, (6, 5, 10, 10), 3674.33),
    10: ("bwd", True, True, (6, 5, 10, 10), 9114.74),
    11: ("both", True, True, (6, 5, 10, 10), 12787.61),
    12: ("fwd", False, True, (7, 5, 10, 10), 3048.09),
    13: ("bwd", False, True, (6, 5, 10, 10), 7374.17),
    14: ("both", False, True, (6, 5, 10, 10), 10317.07),
    15: ("fwd", True, False, (6, 5, 10, 10), 3645.54),
    16: ("bwd", True, False, (6, 5, 10, 10), 9006.52),
    17: ("both", True, False, (6, 5, 10, 10), 12663.00),
    18: ("fwd", False, False, (7, 5, 10, 10), 2985.74),
    19: ("bwd", False, False, (6, 5, 10, 10), 7265.11),
    20: ("both", False, False, (6, 5, 10, 10), 10191.43),
    21: ("", False, False, (6, 5, 10, 10), 82612.00),
}
#: First and last number of PyTorch, Megatron, FlashAttention, block-sparse FlashAttention.
ENDS = {
    9: (0.36, 36.33, 0.4, 16.19, 0.04, 2682.35, 0.06, 13.34),
    10: (0.37, 87.67, 0.35, 8.43, 0.3, 6660.44, 0.3, 47.61),
    11: (0.84, 124.19, 0.87, 16.5, 0.43, 9341.3, 0.44, 64.11),
    12: (0.3, 112.9, 0.45, 5.8, 0.03, 2150.88, 0.05, 10.73),
    13: (0.44, 79.87, 0.29, 6.49, 0.21, 5361.09, 0.22, 47.85),
    14: (0.8, 107.58, 0.81, 12.39, 0.32, 7513.01, 0.34, 60.03),
    15: (0.26, 25.34, 0.27, 6.56, 0.1, 2678.11, 0.54, 14.41),
    16: (0.44, 41.67, 0.28, 10.8, 0.15, 6643.01, 0.17, 37.31),
    17: (0.66, 67.29, 0.88, 17.41, 0.35, 9323.63, 0.91, 53.92),
    18: (0.21, 67.77, 0.24, 4.28, 0.08, 2147.05, 0.56, 11.77),
    19: (0.26, 33.87, 0.29, 8.86, 0.11, 5343.19, 0.11, 37.04),
    20: (0.67, 50.44, 0.74, 13.21, 0.31, 7492.85, 0.74, 50.39),
    21: (36, 17024, 36, 4416, 22, 13376, 22, 13384),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """load_paper remembers folders; a damaged copy must be read again."""
    load_paper.cache_clear()
    yield
    load_paper.cache_clear()


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_appendix_e6_holds_what_is_printed(table: int) -> None:
    passes, dropout, padding, cells, total = TABLES[table]
    rows = select(load_paper(), where=f"table {table}", paper="FlashAttention")
    by_algorithm = [select(rows, algorithm=name) for name in (PYTORCH, MEGATRON, FLASH, SPARSE)]
    assert tuple(len(part) for part in by_algorithm) == cells
    assert sum(cells) == len(rows)
    for part in by_algorithm:
        assert [row.seqlen for row in part] == [128 * 2**i for i in range(len(part))]
    ends = [part[i].value for part in by_algorithm for i in (0, -1)]
    assert tuple(ends) == ENDS[table]
    assert sum(row.value or 0.0 for row in rows) == pytest.approx(total, abs=1e-6)
    facts = {(r.pass_, r.dropout_p, r.mask, r.version, r.gpu, r.how, r.dtype) for r in rows}
    mask = "key padding" if padding else "none"
    words = ("2022-06-24", "A100-40GB", PRINTED, "float16")
    assert facts == {(passes, 0.1 if dropout else 0.0, mask, *words)}
    assert {(r.batch, r.nheads, r.head_dim) for r in rows} == {(16, 8, 64)}
    assert {r.metric for r in rows} == {"memory" if table == 21 else "latency"}


@pytest.mark.parametrize(
    ("table", "algorithm", "seqlen", "value"),
    [
        (9, PYTORCH, 1024, 2.54),
        (9, FLASH, 8192, 41.74),
        (10, MEGATRON, 512, 0.77),
        (10, SPARSE, 2048, 1.5),
        (11, PYTORCH, 2048, 31.75),
        (11, FLASH, 1024, 2.55),
        (12, FLASH, 512, 0.17),
        (12, PYTORCH, 4096, 27.45),
        (13, SPARSE, 1024, 0.57),
        (13, FLASH, 16384, 338.91),
        (14, MEGATRON, 1024, 3.36),
        (14, PYTORCH, 512, 2.08),
        (15, SPARSE, 512, 0.68),
        (15, FLASH, 32768, 668.74),
        (16, PYTORCH, 2048, 10.77),
        (16, FLASH, 4096, 26.21),
        (17, MEGATRON, 256, 0.9),
        (17, SPARSE, 16384, 13.56),
        (18, FLASH, 1024, 0.68),
        (18, PYTORCH, 4096, 16.47),
        (19, FLASH, 2048, 5.45),
        (19, MEGATRON, 1024, 2.59),
        (20, SPARSE, 4096, 3.21),
        (20, FLASH, 512, 0.73),
        (21, SPARSE, 32768, 6690),
        (21, FLASH, 512, 104),
    ],
)
def test_cells_inside_the_tables(table: int, algorithm: str, seqlen: int, value: float) -> None:
    rows = select(load_paper(), where=f"table {table}", algorithm=algorithm, seqlen=seqlen)
    assert [row.value for row in rows if row.paper == "FlashAttention"] == [value]


def test_fig_2_left_is_in_two_versions() -> None:
    rows = select(load_paper(), where="fig. 2 left")
    values = {(r.version, r.metric, r.algorithm): r.value for r in rows}
    assert values == {
        ("2022-06", "hbm", "standard"): 40.3,
        ("2022-06", "hbm", FLASH): 4.4,
        ("2022-06", "latency", "standard"): 41.7,
        ("2022-06", "latency", FLASH): 7.3,
        ("another", "hbm", "standard"): 35.3,
        ("another", "hbm", FLASH): 4.4,
        ("another", "latency", "standard"): 35.1,
        ("another", "latency", FLASH): 11.7,
        ("", "flops", "standard"): 66.6,
        ("", "flops", FLASH): 75.2,
    }
    assert {row.problem for row in rows} == {AttentionProblem(64, 16, 1024, 1024, 64)}
    assert {(r.pass_, r.how, r.gpu) for r in rows} == {("both", PRINTED, "A100")}
    assert {(r.mask, r.dropout_p) for r in select(rows, version="another")} == {("key padding", 0)}


def test_what_nobody_read_has_no_value() -> None:
    unread = select(load_paper(), how=UNREAD)
    assert {row.value for row in unread} == {None}
    assert Counter(row.where for row in unread) == {"fig. 2 middle": 8, "fig. 2 right": 2}
    middle = select(unread, where="fig. 2 middle", metric="hbm")
    assert [row.block_n for row in middle] == [64, 128, 256, 512]
    right = select(unread, where="fig. 2 right")
    assert [(row.seqlen, row.density) for row in right] == [(4096, 0.2), (4096, 0.6)]


def test_the_later_papers() -> None:
    two, three = (select(load_paper(), paper=f"FlashAttention-{n}") for n in (2, 3))
    assert [(r.gpu, r.value, r.unit) for r in two] == [
        ("A100", 230, "TFLOP/s"),
        ("H100", 335, "TFLOP/s"),
    ]
    rates = select(three, metric="rate", how=READ_OFF)
    assert [r.value for r in rates] == [370, 595, 648, 335, 539, 616]
    assert {r.problem for r in select(rates, causal="causal")} == {
        AttentionProblem(1, 16, 16384, 16384, 128, causal="bottom_right")
    }
    assert [r.value for r in select(three, where="table 3")] == [3.2e-4, 1.9e-4]


def test_a_row_names_its_source() -> None:
    row = select(load_paper(), where="table 9")[0]
    assert row.source == "FlashAttention (arXiv 2205.14135), table 9, version 2022-06-24"
    unknown = select(load_paper(), where="fig. 1 right")[0]
    assert unknown.value == 7.6 and unknown.source.endswith("fig. 1 right")
    with pytest.raises(ValueError, match="fig. 1 right gives no whole shape: .* another row"):
        _ = unknown.problem


def test_the_schema_says_what_the_loader_reads() -> None:
    text = (PAPER_DIR.parent / "schema/paper.schema.json").read_text(encoding="utf-8")
    fields = {field["name"]: field for field in json.loads(text)["fields"]}
    assert tuple(fields) == COLUMNS
    allowed = {name: f.get("constraints", {}).get("enum") for name, f in fields.items()}
    for column, known in CHOICES.items():
        assert allowed[column] == [value for value in known if value]
    assert allowed["unit"] == sorted(set(UNITS.values()) - {""})
    assert allowed["paper"] == [name for name, _ in PAPERS.values()]
    assert allowed["arxiv"] == [number for _, number in PAPERS.values()]
    assert fields["where"]["constraints"]["pattern"] == paper.WHERE.pattern
    kinds = {"str": "string", "int | None": "integer", "float | None": "number"}
    for name, kind in paper._KINDS.items():
        assert fields[name]["type"] == kinds[kind]
        assert fields[name]["description"]
    required = [name for name, f in fields.items() if f.get("constraints", {}).get("required")]
    assert all(getattr(row, name) for row in load_paper() for name in required)


# -- damaged files ---------------------------------------------------------------------------------


def damaged(tmp_path: Path, text: bytes | None, name: str = "flashattention-2") -> str:
    folder = tmp_path / "paper"
    shutil.copytree(PAPER_DIR, folder)
    (folder / f"{name}.csv").unlink()
    if text is not None:
        (folder / f"{name}.csv").write_bytes(text)
    with pytest.raises(RecordError) as error:
        load_paper(folder)
    message = str(error.value)
    assert message.startswith(f"paper/{name}.csv") and re.search(REMEDY, message), message
    return message


WHOLE = (PAPER_DIR / "flashattention-2.csv").read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        (b"", "has other columns than paper, arxiv"),
        (b"\xff\xfe" + WHOLE, "cannot be read"),
        (WHOLE.splitlines(keepends=True)[0], "holds no rows"),
        (WHOLE.replace(b"arxiv", b"doi"), "has other columns than paper, arxiv"),
        (WHOLE[:-30], "cannot be read .unexpected end of data"),
        (WHOLE.replace(b",230,", b",,"), "line 2: value = None does not go with how = 'read off"),
        (WHOLE.replace(b",230,", b",-230,"), "line 2: value = '-230' is not of type float"),
        (WHOLE.replace(b",230,", b",0,"), "line 2: value = 0.0 of metric 'rate'"),
        (WHOLE.replace(b",230,", b",1e999,"), "line 2: value = '1e999' is not of type float"),
        (WHOLE.replace(b",230,", b",23_0,"), "line 2: value = '23_0' is not of type float"),
        (WHOLE.replace(b",230,", b",230,x,"), "line 2: 23 cells instead of 22"),
        (WHOLE.replace(b"H100", b"A100"), "line 3: the same point as line 2"),
        (
            WHOLE.replace(b"TFLOP/s", b"GFLOP/s"),
            "unit = 'GFLOP/s' is not that of 'rate', 'TFLOP/s'",
        ),
        (WHOLE.replace(b"2307.08691", b"2205.14135"), "paper, arxiv = .* are not"),
        (WHOLE.replace(b"figs. 4-7", b"page 4"), "where = 'page 4' is not like"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: bytes | None, says: str) -> None:
    assert re.search(says, damaged(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pass_": "decode"}, "pass = 'decode' is not one of"),
        ({"algorithm": "Flash"}, "algorithm = 'Flash' is not one of"),
        ({"dtype": "fp16"}, "dtype = 'fp16' is not one of"),
        ({"how": UNREAD}, "value = 0.36 does not go with how = 'not transcribed'"),
        ({"metric": "", "unit": ""}, "value = 0.36 of metric ''"),
        ({"seqlen": 0}, "seqlen = 0 is not between 1 and"),
        ({"head_dim": 512}, "head_dim = 512 is not between 1 and 256"),
        ({"dropout_p": 1.0}, "dropout_p = 1.0 is not at least 0 and below 1"),
        ({"density": 0.0}, "density = 0.0 is not above 0"),
    ],
)
def test_a_wrong_row_is_refused(change: dict[str, object], says: str) -> None:
    row = load_paper()[0]
    assert row_fault(row, "flashattention") is None
    wrong: PublishedRow = replace(row, **change)  # type: ignore[arg-type]
    fault = row_fault(wrong, "flashattention")
    assert fault is not None and says in fault


def test_every_file_of_a_paper_is_read() -> None:
    files = {p.stem for p in PAPER_DIR.glob("*.csv")} - {"claims"}
    assert files == PAPERS.keys()
    total = 0
    for name in PAPERS:
        with (PAPER_DIR / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            total += len(list(csv.DictReader(file)))
    assert total == len(load_paper())
