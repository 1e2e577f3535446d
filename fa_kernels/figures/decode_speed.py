"""The README's numbers on decoding: TB/s of K and V, ours and the peers', from the newest run."""

from __future__ import annotations

import textwrap

from fa_kernels.device import Device
from fa_kernels.measure.decode_points import DecodePoint, points
from fa_kernels.measure.records import OURS, Row, Run, list_runs, load_run
from fa_kernels.measure.verify_decode import DECODE

#: A column for each: its heading, the provider, and our variant.
COLUMNS = (
    ("ours", OURS, DECODE),
    ("ours, pages of 64", OURS, f"{DECODE}_page64"),
    ("FlashAttention-2", "torch_flash", ""),
    ("cuDNN", "torch_cudnn", ""),
    ("FlashAttention-3", "fa3", ""),
)


def decode_run_on(sheet: Device) -> Run | None:
    """The newest run of kind "decode" on such a GPU, if there is one."""
    runs = (load_run(run_id) for run_id in list_runs(kind="decode"))
    return next((run for run in runs if sheet.is_called(run.device)), None)


def tb_per_s(run: Run, point: DecodePoint, provider: str, variant: str = "") -> float | None:
    """Bytes of K and V, each key once, by the least median of a provider (of one variant of it)."""
    times = [
        row.median
        for row in _timed(run, point)
        if row.provider == provider and variant in ("", row.variant) and row.median
    ]
    return point.kv_bytes / min(times) / 1e9 if times else None


def _timed(run: Run, point: DecodePoint) -> list[Row]:
    rows = run.select(metric="latency_ms", pass_="decode", status="ok")
    return [row for row in rows if row.problem == point.recorded]


def decoding(run: Run | None) -> str:
    """A paragraph, a table and a sentence in Markdown; "" without a run."""
    if run is None:
        return ""
    shown = [p for p in points() if p.attention.seqlen_q == 1 and p.attention.window is None]
    table = [row for point in shown if (row := _line(run, point))]
    if not table:
        return ""
    heads = ["B", "N_k", "heads / k/v heads", "d", *(name for name, _, _ in COLUMNS)]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *table)]
    intro = (
        f"**Decoding.** A step of `fa.decode` (one new row for each head, bf16; {run.device}, "
        f"recorded run `{run.run_id}`), in TB/s of K and V, beside torch's FlashAttention-2, its "
        "cuDNN backend and FlashAttention-3:"
    )
    return "\n".join([_wrapped(intro), "", *lines, *_in_graphs(run, shown)])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _line(run: Run, point: DecodePoint) -> list[str]:
    p = point.attention
    rates = [tb_per_s(run, point, provider, variant) for _, provider, variant in COLUMNS]
    if rates[0] is None:
        return []
    cells = ["" if rate is None else f"{rate:.2f}" for rate in rates]
    heads = f"{p.nheads} / {p.nheads_kv}"
    return [str(p.batch), str(p.seqlen_k), heads, str(p.head_dim), *cells]


def _in_graphs(run: Run, shown: list[DecodePoint]) -> list[str]:
    """What a step takes in a CUDA graph, where that was measured."""
    sentences = []
    for point in shown:
        p = point.attention
        for name, ours in point.names().items():
            times = [r.median for r in _timed(run, point) if r.variant == name and r.median]
            if not ours.layers or ours.page_size or not times:
                continue
            how = "alone in a CUDA graph"
            if ours.layers > 1:
                how = f"as one of {ours.layers} in a CUDA graph"
            text = (
                f"{how} a step of B = {p.batch}, N_k = {p.seqlen_k} takes {1e3 * times[0]:.1f} µs"
            )
            sentences.append(text)
    if not sentences:
        return []
    said = "; ".join(sentences)
    return ["", _wrapped(f"{said[0].upper()}{said[1:]} (cold L2).")]
