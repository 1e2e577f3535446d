"""The README's table of kernels: what each does, moves and takes, from the recorded runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fa_kernels.cuda.run_decode import DECODE_KERNEL
from fa_kernels.cuda.verified import kernel_status
from fa_kernels.decode_problem import TILE_KEYS
from fa_kernels.device import Device
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.baselines import BASELINES, GRID_PEERS
from fa_kernels.measure.records import OURS, Row, Run
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import significant, traffic
from fa_kernels.variants import RUNGS, VARIANTS, Variant

#: The point of the table: long enough that S and P dominate, short enough that all of them run.
POINT: dict[str, Any] = {"dtype": "float16", "seqlen_q": 4096, "head_dim": 64}
_PLAIN: dict[str, Any] = {"pass_": "fwd", "causal": "none", "block_mask": ""}


def _fastest(run: Run, provider: str, variant: str) -> Row | None:
    same = {"provider": provider, "variant": variant, "metric": "latency_ms"}
    rows = run.select(status="ok", **same, **_PLAIN, **POINT)
    return min(rows, key=lambda row: row.median or 0.0, default=None)


def _counted(run: Run, timed: Row) -> str:
    same = {"provider": timed.provider, "variant": timed.variant, "metric": "hbm_bytes"}
    tiles = {"block_m": timed.block_m, "block_n": timed.block_n}
    rows = run.select(**tiles, **same, **_PLAIN, **POINT)
    return traffic(rows[0].median) if rows and rows[0].median is not None else "not counted"


def _cells(
    run: Run, provider: str, variant: str, what: str, status: str, sheet: Device
) -> list[str]:
    row = _fastest(run, provider, variant)
    name = f"`{VARIANTS[variant].kernel}`" if variant in VARIANTS else provider
    if row is None or row.median is None:
        return [name, what, "", "not recorded", "", "", "", status]
    untiled = "none" if variant in VARIANTS else "its own"
    tiles = f"{row.block_m} × {row.block_n}" if row.block_m else untiled
    rate = matmul_flops(row.problem) / row.median / 1e9
    ours = provider == OURS
    # CUDA cores compute in fp32; tensor cores, which the peers use, multiply in the io dtype.
    tensor_cores = VARIANTS[variant].tensor_cores if ours else True
    peak = sheet.peak_tflops(row.dtype, tensor_cores)
    return [
        name,
        what,
        tiles,
        f"{significant(row.median)} ms",
        f"{rate:.0f}",
        f"{100 * rate / peak:.0f} % of {peak:.0f}",
        _counted(run, row) if ours else "",
        status,
    ]


def kernel_table(run: Run, sheet: Device, speed: Run | None = None) -> str:
    """Markdown: our kernels and the peers at one point, each with its fastest tiling.

    One row per kernel file; what it can be compiled to as a control is named in its row. A kernel
    that `speed`, a run of that kind on the same GPU, has timed is shown as timed there, all others
    and the peers as in `run`. `sheet` is the data sheet of that GPU: it gives the peaks, and the
    architecture whose verification record the last column shows.
    """
    elsewhere = [
        v.name for v in RUNGS.values() if speed is not None and _fastest(speed, OURS, v.name)
    ]
    rows = []
    for v in RUNGS.values():
        source = speed if speed is not None and v.name in elsewhere else run
        status = kernel_status(v.kernel, sheet.arch)
        rows.append(_cells(source, OURS, v.name, _what(v), status, sheet))
    rows.append(_decoding(sheet))
    peers = [BASELINES[name] for name in GRID_PEERS]
    rows += [_cells(run, b.provider, b.variant, b.summary, "", sheet) for b in peers]
    header = ["kernel", "what it does", "tile", "time", "TFLOP/s", "peak", "HBM, counted"]
    header.append(sheet.arch)
    shape = AttentionProblem.of_tokens(POINT["seqlen_q"], POINT["head_dim"], "float16").describe()
    caption = f"{shape}, forward; {run.device}, recorded run `{run.run_id}`"
    if speed is not None and elsewhere:
        kernels = ", ".join(f"`{RUNGS[name].kernel}`" for name in elsewhere)
        caption += f", the peers too; {kernels}: another run on such a GPU, `{speed.run_id}`"
    caption += f". `{DECODE_KERNEL}` attends a KV cache, which is another call"
    return "\n".join([*_markdown(header, rows), "", f"{caption}."])


def _decoding(sheet: Device) -> list[str]:
    """The row of the decoding kernel, which has no place at the table's point."""
    what = "few query rows against a KV cache, also in pages, its keys split over the GPU"
    cells = [f"`{DECODE_KERNEL}`", f"{what} (Flash-Decoding)", f"{TILE_KEYS} keys"]
    return [*cells, "", "", "", "", kernel_status(DECODE_KERNEL, sheet.arch)]


def _what(variant: Variant) -> str:
    controls = [v.label for v in VARIANTS.values() if v.control_for == variant.name]
    also = f"; as a control also: {', '.join(controls)}" if controls else ""
    return f"{variant.summary} ({variant.source}{also})"


def _markdown(header: list[str], rows: Iterable[list[str]]) -> Iterable[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(cells)} |"
