"""What the README shows is that of the recorded runs; `make figures` redraws it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from fa_kernels.cuda.run_decode import DECODE_KERNEL
from fa_kernels.cuda.verified import kernel_status
from fa_kernels.device import device
from fa_kernels.figures.how_fast import how_fast
from fa_kernels.figures.kernel_table import kernel_table
from fa_kernels.figures.readme import (
    PICTURE,
    README,
    SIDECAR,
    generated,
    provenance,
    sheet_of,
    with_block,
)
from fa_kernels.figures.recorded_peers import peers_runs
from fa_kernels.figures.recorded_speed import RecordedSpeed
from fa_kernels.figures.recorded_training import RecordedTraining
from fa_kernels.figures.shown import runs_to_show
from fa_kernels.measure.records import Row, Run, list_runs, load_run
from fa_kernels.variants import RUNGS, VARIANTS


@pytest.fixture(scope="module")
def run() -> Run:
    return load_run(runs_to_show()[0])


@pytest.fixture(scope="module")
def speed(run: Run) -> Run:
    runs = [load_run(run_id) for run_id in list_runs(kind="speed")]
    runs = [other for other in runs if other.device == run.device]
    return next(run for run in runs if run.select(metric="latency_ms", pass_="fwd"))


@pytest.fixture(scope="module")
def backward(run: Run) -> Run:
    runs = [load_run(run_id) for run_id in list_runs(kind="speed")]
    runs = [other for other in runs if other.device == run.device]
    return next(run for run in runs if run.select(metric="latency_ms", pass_="bwd"))


@pytest.mark.parametrize("name", ["kernel table", "how fast"])
def test_the_readme_is_the_runs(run: Run, name: str) -> None:
    text = README.read_text(encoding="utf-8")
    block = generated(run, sheet_of(run))[name]
    assert block and with_block(text, name, block) == text, "run `make figures`"


def test_the_picture_is_the_runs(run: Run) -> None:
    assert PICTURE.exists()
    kept = json.loads(SIDECAR.read_text(encoding="utf-8"))
    assert kept == provenance(run, sheet_of(run)), "run `make figures`"


def test_the_table_has_one_row_for_every_kernel(run: Run, speed: Run) -> None:
    table = kernel_table(run, sheet_of(run), speed)
    for variant in VARIANTS.values():
        assert table.count(f"| `{variant.kernel}` |") == 1
        if variant.control_for:
            (row,) = (r for r in table.splitlines() if f"`{variant.kernel}`" in r)
            assert f"as a control also: {variant.label})" in row
    assert f"`{run.run_id}`" in table
    # A new rung has a row before it has a run.
    timed = {row.series for one in (run, speed) for row in one.rows if row.metric == "latency_ms"}
    waiting = {variant.kernel for name, variant in RUNGS.items() if name not in timed}
    empty = {row.split("`")[1] for row in table.splitlines() if "| not recorded |" in row}
    assert empty == waiting


def row_of(table: str, kernel: str) -> str:
    (row,) = (line for line in table.splitlines() if line.startswith(f"| `{kernel}` |"))
    return row


def test_what_the_speed_run_timed_is_from_there(run: Run, speed: Run) -> None:
    """05 and 06 alone; a causal row of the same N must not be taken for the table's."""
    alone, both = (kernel_table(run, sheet_of(run), s) for s in (None, speed))
    differ = {a.split(" | ")[0] for a, b in zip(alone.splitlines(), both.splitlines(), strict=True)
              if a != b and a.startswith("|")}  # fmt: skip
    assert differ == {"| `05_flash_mma`", "| `06_flash_wgmma`"}
    assert "not recorded" in row_of(alone, "05_flash_mma") and speed.run_id not in alone
    rows = speed.select(variant="flash_mma", metric="latency_ms", dtype="float16", seqlen_q=4096,
                        head_dim=64, causal="none", status="ok")  # fmt: skip
    least = min(row.median for row in rows if row.median)
    assert f"| {least:.3g} ms |" in row_of(both, "05_flash_mma")
    assert f"`{speed.run_id}`. `{DECODE_KERNEL}` attends" in both.splitlines()[-1]


def test_the_decoding_kernel_has_a_row_without_a_time(run: Run) -> None:
    sheet = sheet_of(run)
    cells = row_of(kernel_table(run, sheet), DECODE_KERNEL).split(" | ")
    assert cells[2:7] == ["16 keys", "", "", "", ""]
    assert cells[7] == f"{kernel_status(DECODE_KERNEL, sheet.arch)} |"


def test_tensor_cores_are_held_against_their_own_peak(run: Run, speed: Run) -> None:
    sheet = sheet_of(run)
    table = kernel_table(run, sheet, speed)
    for kernel, tensor_cores in (("04_flash_q_outer", False), ("05_flash_mma", True)):
        peak = sheet.peak_tflops("float16", tensor_cores)
        assert f" % of {peak:.0f} |" in row_of(table, kernel)


# -- "How fast" ------------------------------------------------------------------------------


#: head_dim, dtype, causal, N.
Key = tuple[int, str, str, int]


def latencies(run: Run, **wanted: object) -> dict[Key, float]:
    """Problem -> median; of several tiles the first, which are those of a call."""
    found: dict[Key, float] = {}
    for row in run.select(metric="latency_ms", status="ok", **wanted):
        assert row.median
        if row.batch * row.seqlen_q != 16384:
            continue  # beside the grid
        found.setdefault((row.head_dim, row.dtype, row.causal, row.seqlen_q), row.median)
    return found


def of_dim(ratios: dict[Key, float], d: int) -> list[float]:
    return [ratio for problem, ratio in ratios.items() if problem[0] == d]


def mean(ratios: list[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))


def host_us(run: Run, **wanted: str) -> str:
    (row,) = run.select(metric="launch_us", **wanted)
    return f"{row.median:.1f}"


def cells_of(ratios: dict[Key, float], dims: Sequence[int]) -> list[str]:
    """Mean, least and greatest of every d, and at how many points ours is slower."""
    found = [of_dim(ratios, d) for d in dims]
    cells = [f"{mean(f):.2f} ({min(f):.2f} to {max(f):.2f})" if f else "" for f in found]
    return [*cells, f"{sum(ratio < 1 for ratio in ratios.values())} of {len(ratios)}"]


def expected_lines(run: Run, pass_: str, variant: str) -> Iterator[list[str]]:
    """What the table says of one rung and pass beside both peers, from the rows alone."""
    ours = latencies(run, provider="fa_kernels", variant=variant, pass_=pass_)
    kernel = VARIANTS[variant].kernel + ("_backward" if pass_ == "bwd" else "")
    for provider, name in (("torch_flash", "FlashAttention-2"), ("torch_cudnn", "cuDNN")):
        theirs = latencies(run, provider=provider, pass_=pass_)
        assert ours.keys() <= theirs.keys()
        everywhere = {problem: theirs[problem] / ms for problem, ms in ours.items()}
        long = {problem: ratio for problem, ratio in everywhere.items() if problem[3] >= 2048}
        worst = min(everywhere, key=lambda problem: everywhere[problem])
        least = f"{everywhere[worst]:.2f} (d = {worst[0]}, N = {worst[3]})"
        yield [f"`{kernel}`", name, *cells_of(long, (64, 128, 256)), least]


def expected_other(run: Run, provider: str, name: str, ours: str) -> list[str]:
    """Of one peer of a run of kind "peers", but for what was measured where."""
    mine = latencies(run, provider="fa_kernels", variant=ours, pass_="fwd")
    theirs = latencies(run, provider=provider, pass_="fwd")
    # As everywhere: shorter calls leave a GPU idle.
    ratios = {at: ms / mine[at] for at, ms in theirs.items() if at[3] >= 2048}
    return [name, *cells_of(ratios, (64, 128))]


def tables_in(text: str) -> dict[str, list[list[str]]]:
    """Head of the first column and of the second -> cells of every line below."""
    found: dict[str, list[list[str]]] = {}
    lines: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            lines = []
        elif set(cells) == {"---"}:
            continue
        elif not lines:
            lines = found.setdefault(" ".join(cells[:2]), [cells])
        else:
            lines.append(cells)
    return found


def expected_step(run: Run) -> Iterator[str]:
    """Of figure 2 (left), forward and backward together."""
    yield from ("2", "64", "16", "1024", "64")
    series = (("fa_kernels", "flash_wgmma"), ("fa_kernels", "flash_mma"),
              ("torch_flash", "sdpa"), ("torch_cudnn", "sdpa"))  # fmt: skip
    for provider, variant in series:
        (row,) = run.select(metric="latency_ms", pass_="both", variant=variant, provider=provider)
        yield f"{row.median:.2f}"


def expected_training(run: Run) -> Iterator[str]:
    """Tokens, then of each model N, dropout and three times."""
    times = [r for r in run.rows if r.metric == "latency_ms"]
    yield from ("32", "768")  # "32,768" as `numbers_in` reads it
    for ours in (row for row in times if row.provider == "fa_kernels"):
        yield str(ours.seqlen_q)
        yield f"{ours.dropout_p:g}"
        for provider in ("fa_kernels", "torch_flash", "torch_cudnn"):
            (row,) = (
                r for r in times
                if (r.provider, r.seqlen_q, r.dropout_p)
                == (provider, ours.seqlen_q, ours.dropout_p)
            )  # fmt: skip
            yield f"{row.median:.1f}"


def expected_calls(run: Run) -> Iterator[str]:
    yield from (host_us(run, provider="fa_kernels", detail="CuPy arrays"),
                host_us(run, provider="fa_kernels", detail="torch tensors"),
                host_us(run, provider="torch_flash"))  # fmt: skip
    yield str(run.select(metric="launch_us")[0].seqlen_q)
    seconds = [row.median for row in run.select(metric="compile_s") if row.median]
    yield from (f"{min(seconds):.1f}", f"{max(seconds):.1f}")


def numbers_in(text: str) -> list[str]:
    """Numbers that stand by themselves: not those in names (`05_flash_mma`, fp16, H200)."""
    prose = re.sub(r"`[^`]*`", "", text)
    return re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])", prose)


def test_every_number_of_how_fast_is_the_newest_runs(speed: Run, backward: Run) -> None:
    """The README against the rows, by other code than what wrote it."""
    training = load_run(list_runs(kind="training")[0])
    text = README.read_text(encoding="utf-8")
    begin, end = text.index("<!-- how fast: begin -->"), text.index("<!-- how fast: end -->")
    said = text[begin:end].partition("\n")[2].partition("**Decoding.**")[0]
    tables = tables_in(said)
    heads, *lines = tables["kernel beside"]
    assert heads[2:] == ["d = 64", "d = 128", "d = 256", "slower at", "least ratio, N ≥ 512"]
    assert lines == [
        *expected_lines(speed, "fwd", "flash_wgmma"),
        *expected_lines(speed, "fwd", "flash_mma"),
        *expected_lines(backward, "bwd", "flash_wgmma"),
        *expected_lines(backward, "bwd", "flash_mma"),
    ]
    _, *lines = tables["ours beside"]
    others = (("20261130-h200-peers", "fa3", "FlashAttention-3"),
              ("20261130-h200-fa4", "fa4", "FlashAttention-4"),
              ("20261130-h200-flex", "flex", "FlexAttention"))  # fmt: skip
    for cells, (run_id, provider, name) in zip(lines, others, strict=True):
        run = load_run(run_id)
        assert cells[0] == "`05_flash_mma`"
        assert cells[1:-1] == expected_other(run, provider, name, "flash_mma")
        timed = latencies(run, provider=provider, pass_="fwd")
        seqlens = [str(n) for n in sorted({at[3] for at in timed}) if n >= 2048]
        assert numbers_in(cells[-1]) == seqlens and f"`{run_id}`" in cells[-1]
    # The rest is text, and the table of training. Who takes which call is no number of a run.
    parts = [p for p in said.split("\n\n") if "`make verify`" not in p]
    tabled = ("| kernel", "| ours", '`variant="auto"`')
    rest = [p for p in parts if not p.startswith(tabled)]
    assert numbers_in("\n\n".join(rest)) == [
        "1", "2048", "16384",
        *expected_step(backward),
        *expected_training(training),
        *expected_calls(speed),
    ]  # fmt: skip
    assert f"`{speed.run_id}`" in said and f"`{backward.run_id}`" in said and speed.device in said


def test_every_number_of_decoding_is_the_newest_runs() -> None:
    """The table of TB/s against the rows, cell by cell, by other code than what wrote it."""
    run = load_run(list_runs(kind="decode")[0])
    columns = (
        ("fa_kernels", "decode_split_kv"), ("fa_kernels", "decode_split_kv_page64"),
        ("torch_flash", "sdpa"), ("torch_cudnn", "sdpa"),
    )  # fmt: skip
    text = README.read_text(encoding="utf-8").partition("**Decoding.**")[2]
    text = text.partition("<!-- how fast: end -->")[0]
    assert f"`{run.run_id}`" in text
    lines = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| \d", line)]
    assert len(lines) >= 5
    for line in lines:
        batch, keys, heads, head_dim, *cells = (cell.strip() for cell in line)
        nheads_kv = int(heads.split("/")[1])
        gb = 2 * int(batch) * nheads_kv * int(keys) * int(head_dim) * 2 / 1e9
        found = {
            (row.provider, row.variant): gb / row.median
            for row in run.rows
            if row.metric == "latency_ms" and row.median and row.seqlen_q == 1
            and (row.batch, row.seqlen_k, row.nheads_kv, row.head_dim)
            == (int(batch), int(keys), nheads_kv, int(head_dim))
        }  # fmt: skip
        fa3 = max(rate for (provider, _), rate in found.items() if provider == "fa3")
        want = [*(found[column] for column in columns), fa3]
        assert cells == [f"{rate:.2f}" for rate in want]


def with_times(run: Run, factor: float) -> Run:
    """The run without 06, as if 05 took `factor` times as long."""
    rest = [row for row in run.rows if not row.variant.startswith("flash_wgmma")]

    def changed(row: Row) -> Row:
        if (row.variant, row.metric) != ("flash_mma", "latency_ms") or not row.median:
            return row
        assert row.p20 and row.p80
        return replace(row, median=row.median * factor, p20=row.p20 * factor, p80=row.p80 * factor)

    return replace(run, rows=tuple(map(changed, rest)))


def test_the_table_follows_the_numbers(speed: Run) -> None:
    def slower(run: Run) -> list[str]:
        _, *lines = tables_in(how_fast(RecordedSpeed(run)))["kernel beside"]
        return [cells[5] for cells in lines]

    assert slower(with_times(speed, 0.1)) == ["0 of 48", "0 of 48"]
    assert slower(with_times(speed, 10)) == ["48 of 48", "48 of 48"]
    assert slower(with_times(speed, 1))[1] == "48 of 48", "cuDNN's is on wgmma, 05 is not"


def test_the_fastest_rung_is_told_of_first_and_every_one_by_its_name(speed: Run) -> None:
    both, alone = how_fast(RecordedSpeed(speed)), how_fast(RecordedSpeed(with_times(speed, 1)))
    kernels = [cells[0] for cells in tables_in(both)["kernel beside"][1:]]
    assert kernels == ["`06_flash_wgmma`"] * 2 + ["`05_flash_mma`"] * 2
    kernels = [cells[0] for cells in tables_in(alone)["kernel beside"][1:]]
    assert kernels == ["`05_flash_mma`"] * 2
    (row,) = speed.select(metric="launch_us", detail="CuPy arrays")
    assert f"that runs `{VARIANTS[row.variant].kernel}`" in both.replace("\n", " ")


def test_gradients_are_told_of_beside_their_peers(speed: Run, backward: Run) -> None:
    said = how_fast(RecordedSpeed(speed), RecordedSpeed(backward, "bwd")).replace("\n", " ")
    assert (
        "| `05_flash_mma_backward` | cuDNN |" in said and f"gradients, `{backward.run_id}`" in said
    )
    assert "figure 2 (left; B = 64, H = 16, N = 1024, d = 64" in said
    alone = how_fast(RecordedSpeed(speed), RecordedSpeed(speed, "bwd"))
    assert alone == how_fast(RecordedSpeed(speed)) and "gradients" not in alone


def test_training_steps_are_told_of_where_all_three_were_timed(speed: Run) -> None:
    training = RecordedTraining.on(device("h200"))
    said = how_fast(RecordedSpeed(speed), None, training).replace("\n", " ")
    assert training.run and training.run.run_id in said and "| 4096 | 0.1 | " in said
    assert said.count(" ms |") == 3 * len(training.steps) == 12
    ours = replace(training.run, rows=tuple(training.run.select(provider="fa_kernels")))
    assert how_fast(RecordedSpeed(speed), None, RecordedTraining(ours)) == how_fast(
        RecordedSpeed(speed)
    )


def test_other_peers_are_told_of_from_the_run_that_has_them(speed: Run) -> None:
    runs = peers_runs(device("h200"))
    said = how_fast(RecordedSpeed(speed), peers=runs).splitlines()
    for name, package, run_id in (
        ("FlashAttention-3", "`fa3-fwd", "20261130-h200-peers"),
        ("FlexAttention", "`torch 2", "20261130-h200-flex"),
    ):
        line = next(line for line in said if f"` | {name} |" in line)
        assert package in line and f"`{run_id}`" in line
    assert "(`06_flash_wgmma`: not yet timed beside them)" in " ".join(said)
    without = [run for run in runs if run.run_id != "20261130-h200-flex"]
    alone = how_fast(RecordedSpeed(speed), peers=without)
    assert "FlexAttention" not in alone and "FlashAttention-3" in alone
    assert "Other peers" not in how_fast(RecordedSpeed(speed))


def test_without_a_run_nothing_is_said(speed: Run) -> None:
    assert how_fast(RecordedSpeed()) == ""
    ours = replace(speed, rows=tuple(speed.select(provider="fa_kernels")))
    assert how_fast(RecordedSpeed(ours)) == ""
    timed = replace(speed, rows=tuple(speed.select(metric="latency_ms")))
    said = how_fast(RecordedSpeed(timed))
    assert "How fast" in said and "costs the host" not in said


def test_a_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no block from <!-- kernel table: begin -->"):
        with_block("# a title", "kernel table", "a table")
