"""Looking things up in a recorded run: curves over N, and in words what was not recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.point import Point, device_words
from fa_kernels.figures.sparse import row_name
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.records import (
    RecordError,
    Row,
    Run,
    device_of,
    list_runs,
    load_run,
    parse_mask,
)
from fa_kernels.patterns import blocks_kept
from fa_kernels.problem import SHORT_DTYPE
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import ALGORITHMS, VARIANTS, Variant

#: Budgets looked for when saying which were recorded: rows hold tiles, not M.
_BUDGETS_KIB = (4, 8, 16, 24, 32, 48, 64, 96, 100, 128, 160, 192, 224, 228, 256)

_Key = tuple[str, str, int, str]
#: N, tiles, and of a block mask its name in the row and the kept blocks per row ("" and 0: dense).
_Where = tuple[int, int | None, int | None, str, int]


def read_run(run_id: str, root: Path | None = None) -> Run | str:
    """The run, or the sentence that says why it cannot be read. Nothing raises.

    What lies on a disk must not stop a notebook's first cell, whatever it is.
    """
    try:
        return load_run(run_id, root)
    except RecordError as error:
        return f"{str(error)[:1].upper()}{str(error)[1:]}"
    except Exception as error:
        why = str(error) or type(error).__name__
        return f"The recorded run {run_id!r} cannot be read ({why}): restore it or choose another."


def runs_on(
    device: Device, kind: str | None = None, root: Path | None = None, first: Run | None = None
) -> Iterator[Run]:
    """Runs of a kind (None: of any) that `device` recorded, newest first.

    `first`, if it is such a run, comes before them. What cannot be read is passed over.
    """
    # By run.json alone first: reading the rows of all GPUs takes long.
    ids = (name for name in list_runs(root, kind) if device.is_called(device_of(name, root)))
    read = (read_run(run_id, root) for run_id in ids)
    for run in (first, *read) if first is not None else read:
        if isinstance(run, Run) and kind in (None, run.kind) and device.is_called(run.device):
            yield run


class RecordedRun:
    """A run indexed for lookups; forward rows of the suite's own grid only, dense and masked."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.run_id = run.run_id
        self._rows: dict[_Key, dict[_Where, Row]] = defaultdict(dict)
        self._tilings: dict[tuple[str, int, int], set[tuple[int, int]]] = defaultdict(set)
        for row in run.rows:
            self._add(row)

    def _add(self, row: Row) -> None:
        if row.pass_ != "fwd" or row.causal.lower() not in ("", "none", "false"):
            return
        if row.dropout_p or row.seqlen_q != row.seqlen_k:
            return
        kept = 0
        if row.block_mask:
            kept = _kept_per_row(row)
        elif row.density != 1.0:
            return
        key = (row.series, row.dtype, row.head_dim, row.metric)
        # A resumed run may hold a point twice: the later row is the one that was finished.
        where = (row.seqlen_q, row.block_m, row.block_n, row.block_mask, kept)
        self._rows[key][where] = row
        variant = VARIANTS.get(row.variant)
        if variant is not None and variant.same_algorithm is not None:
            return  # with tiles of its own, which are no budget's
        if row.block_m is not None and row.block_n is not None and not row.block_mask:
            sizes = (row.dtype, row.head_dim, row.seqlen_q)
            self._tilings[sizes].add((row.block_m, row.block_n))

    def row(self, name: str, point: Point, metric: str) -> Row | None:
        """The row of a variant or a peer at exactly this point.

        A tiled variant's has the point's tiles, one that takes a block mask also its mask; an
        untiled variant and a peer have neither.
        """
        problem, variant = point.problem, VARIANTS.get(name)
        tiles: tuple[int | None, int | None] = (None, None)
        if variant is not None and variant.tiled:
            tiles = (point.tiling.block_m, point.tiling.block_n)
        blocks = point.blocks_of(variant) if variant is not None else None
        mask = (row_name(blocks), blocks.count) if blocks else ("", 0)
        found = self._rows.get((name, problem.dtype, problem.head_dim, metric), {})
        row = found.get((point.seqlen, *tiles, *mask))
        same = row is not None and (row.batch, row.nheads) == (problem.batch, problem.nheads)
        return row if same else None

    def names(self, point: Point, metric: str) -> list[str]:
        """Series that have rows at this d and dtype: our algorithms first, then the peers."""
        problem = point.problem
        wanted = (problem.dtype, problem.head_dim, metric)
        found = {key[0] for key in self._rows if key[1:] == wanted}
        known = [name for name in (*ALGORITHMS, *BASELINES) if name in found]
        return known + sorted(found.difference(known, VARIANTS))

    def seqlens(self, point: Point) -> list[int]:
        """The recorded N at this d and dtype."""
        problem = point.problem
        keys = (
            (d, h, n) for d, h, n in self._tilings if (d, h) == (problem.dtype, problem.head_dim)
        )
        return sorted(n for _, _, n in keys)

    def curve(self, name: str, point: Point, metric: str) -> list[Row]:
        """One row per recorded N, in order, all with this point's M, d and dtype."""
        rows = (self.row(name, point.at(n), metric) for n in self.seqlens(point))
        return [row for row in rows if row is not None]

    def missing(self, point: Point) -> str | None:
        """Why there is no curve of our kernels at this point, in words, or None."""
        problem = point.problem
        kinds = {(dtype, d) for dtype, d, _ in self._tilings}
        dims = sorted(d for dtype, d in kinds if dtype == problem.dtype)
        if not dims:
            known = ", ".join(sorted({SHORT_DTYPE[dtype] for dtype, _ in kinds})) or "nothing"
            return f"no run in {SHORT_DTYPE[problem.dtype]}; recorded: {known}"
        if problem.head_dim not in dims:
            return f"no run at d = {problem.head_dim}; recorded: {', '.join(map(str, dims))}"
        # At the longest N: short sequences cut the tiles, so budgets are alike there.
        longest = max(self.seqlens(point))
        tiling = point.at(longest).tiling
        recorded = self._tilings[(problem.dtype, problem.head_dim, longest)]
        if (tiling.block_m, tiling.block_n) not in recorded:
            budgets = self._budgets(point)
            known = f"{', '.join(map(str, budgets))} KiB" if budgets else "other tiles"
            return f"no run at M = {point.sram_kib} KiB; recorded: {known}"
        return None

    def missing_mask(self, point: Point) -> str | None:
        """Why there is no curve of the block-sparse variants at this point, in words, or None."""
        if point.blocks is None or self.missing(point):
            return None
        longest = point.at(max(self.seqlens(point)))
        assert longest.blocks is not None
        if any(self.row(v.name, longest, "latency_ms") for v in _block_sparse()):
            return None
        said = f"no run with {point.pattern} blocks at s = {_fraction(point.density)}"
        known = self._masks(longest)
        if not known:
            return f"{said}; none was recorded at this d, dtype and M"
        return f"{said}; recorded: {', '.join(known)}"

    def _masks(self, longest: Point) -> list[str]:
        """Patterns and densities that were recorded with this point's tiles, d and dtype."""
        problem, tiling, found = longest.problem, longest.tiling, set()
        for variant in _block_sparse():
            key = (variant.name, problem.dtype, problem.head_dim, "latency_ms")
            for (n, block_m, block_n, mask, _), row in self._rows.get(key, {}).items():
                if mask and (n, block_m, block_n) == (
                    longest.seqlen, tiling.block_m, tiling.block_n
                ):  # fmt: skip
                    found.add((parse_mask(mask)[0], -row.density))
        return [f"{name} {_fraction(-density)}" for name, density in sorted(found)]

    def unrecorded(self, point: Point) -> list[str]:
        """Labels of the algorithms of which this run has nothing at all at this d and dtype."""
        names = self.names(point, "latency_ms")
        return [variant.label for name, variant in ALGORITHMS.items() if name not in names]

    def missing_seqlen(self, point: Point) -> str | None:
        """Why there is nothing at exactly this N, in words, or None."""
        known = self.seqlens(point)
        if not known or point.seqlen in known:
            return None
        return (
            f"no run at N = {point.seqlen}; recorded: powers of two from {known[0]} to {known[-1]}"
        )

    def achieved(self, point: Point) -> str:
        """Which share of the device's fp32 peak our variants reached here; empty if not recorded.

        Our kernels only: the peers compute on tensor cores, under another ceiling.
        """
        shares: list[str] = []
        for name, variant in ALGORITHMS.items():
            row = self.row(name, point, "latency_ms")
            if row is not None and row.median:
                tflops = point.flops(variant) / row.median / 1e9
                share = f"{100 * tflops / point.fp32_peak_tflops:.0f} %"
                shares.append(f"{variant.label}{'' if shares else ' reaches'} {share}")
        if not shares:
            return ""
        said = " and ".join(filter(None, ["; ".join(shares[:-1]), shares[-1]]))
        return f"{said} of the {device_words(point.device)}'s fp32 peak"

    def _budgets(self, point: Point) -> list[int]:
        problem = point.problem
        n = max(self.seqlens(point))
        recorded = self._tilings[(problem.dtype, problem.head_dim, n)]
        found: dict[tuple[int, int], int] = {}
        for kib in _BUDGETS_KIB:
            tiling = Tiling.from_sram(kib * KIB, problem.head_dim, problem.dtype).clipped(n, n)
            tiles = (tiling.block_m, tiling.block_n)
            if tiles in recorded:
                found.setdefault(tiles, kib)
        return sorted(found.values())


def is_at(row: Row, point: Point) -> bool:
    """True if a row of ours has this point's d, dtype, tiles and block mask; N is not compared."""
    variant, problem = VARIANTS.get(row.variant), point.problem
    if variant is None or (row.dtype, row.head_dim) != (problem.dtype, problem.head_dim):
        return False
    tiling, blocks = point.tiling, point.blocks_of(variant)
    if variant.tiled and (row.block_m, row.block_n) != (tiling.block_m, tiling.block_n):
        return False
    if blocks is None:
        return not row.block_mask
    return row.block_mask == row_name(blocks) and _kept_per_row(row) == blocks.count


def _kept_per_row(row: Row) -> int:
    """Kept blocks in each row of a masked row's pattern; its density is rounded in the file."""
    _, _, block_n = parse_mask(row.block_mask)
    return blocks_kept(row.density, -(-row.seqlen_k // block_n))


def _block_sparse() -> list[Variant]:
    return [variant for variant in ALGORITHMS.values() if variant.block_sparse]


def _fraction(density: float) -> str:
    """A density as people say it: "1/8"; "0.3" where it is no such fraction."""
    part = 1 / density
    return f"1/{round(part)}" if abs(part - round(part)) < 0.02 * part else f"{density:.3g}"


class RecordedRuns:
    """The runs at hand: the session's own first, then the newest one of each device."""

    def __init__(self, run: Run | None = None, root: Path | None = None) -> None:
        self._root = root
        self._known: list[RecordedRun] = [] if run is None else [RecordedRun(run)]
        self._searched: dict[str, RecordedRun | None] = {}

    def on(self, device: Device) -> RecordedRun | None:
        """The run that was recorded on `device`, or None."""
        for known in self._known:
            if device.is_called(known.run.device):
                return known
        if device.slug not in self._searched:
            self._searched[device.slug] = self._search(device)
        return self._searched[device.slug]

    def _search(self, device: Device) -> RecordedRun | None:
        for run_id in list_runs(self._root, kind="grid"):
            run = read_run(run_id, self._root)
            # The session's banner names a run that cannot be read.
            if isinstance(run, Run) and device.is_called(run.device):
                return RecordedRun(run)
        return None
