"""The record of compiled kernels: complete, of today's kernels, and made by one command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.cuda import compiled, sass
from fa_kernels.cuda.compiled import REFRESH, CompiledLaunch, read_record
from fa_kernels.cuda.occupancy import SM_LIMITS
from fa_kernels.measure import compiled_run
from fa_kernels.measure.compile_all import SPILL_LIMIT, SPILLING_KERNEL
from fa_kernels.measure.compiled_run import (
    ARCHS,
    Shipped,
    out_of_date,
    record_compiled,
    shipped,
)
from fa_kernels.problem import ITEMSIZE
from fa_kernels.variant import Variant
from fa_kernels.variants import RUNGS, VARIANTS

FLASH = VARIANTS["flash_q_outer"]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_record_is_of_todays_kernels(arch: int) -> None:
    """Refresh it with `python -m fa_kernels compile-all --record`: NVRTC and nvdisasm, no GPU."""
    stale = out_of_date(arch)
    assert not stale, f"{'; '.join(stale)}: run `{REFRESH}` (pip install nvidia-cuda-nvdisasm)"


@pytest.mark.parametrize("arch", ARCHS)
def test_every_rung_is_recorded_without_spills(arch: int) -> None:
    kernels = read_record(arch)["kernels"]
    assert set(kernels) == {one.plan.kernel for one in shipped(arch)}
    for name, entry in kernels.items():
        for build in entry["builds"]:
            for launch in build["launches"]:
                # compile_all.py says why this kernel may, on other GPUs than it was made for.
                most = SPILL_LIMIT if (name, arch) == (SPILLING_KERNEL, 80) else 0
                assert launch["counts"] and launch["spill_bytes"] <= most, name


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "variant", [v for v in RUNGS.values() if v.tensor_cores], ids=lambda v: v.name
)
def test_gradients_on_tensor_cores_are_recorded_on_them(variant: Variant, arch: int) -> None:
    """S, dP, dV, dK and dQ of the tiles of a visit, all of them on tensor cores."""
    assert variant.backward is not None
    if not variant.runs_on(arch):
        assert variant.backward.kernel not in read_record(arch)["kernels"]
        return
    builds = read_record(arch)["kernels"][variant.backward.kernel]["builds"]
    assert {build["head_dim"] for build in builds} == set(compiled_run.HEAD_DIMS)
    for build in builds:
        (keys,) = (line for line in build["launches"] if line["entry"].endswith("_keys"))
        assert keys["products"] and all(name.startswith(unit(variant)) for name in keys["products"])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "variant", [v for v in RUNGS.values() if v.tensor_cores], ids=lambda v: v.name
)
def test_a_rung_on_tensor_cores_is_recorded_on_them(variant: Variant, arch: int) -> None:
    """Every build of its own tiles: products on tensor cores alone, all of them, and no spills."""
    if not variant.runs_on(arch):
        assert variant.kernel not in read_record(arch)["kernels"]
        return
    builds = read_record(arch)["kernels"][variant.kernel]["builds"]
    assert {build["head_dim"] for build in builds} == set(compiled_run.HEAD_DIMS)
    limit = SM_LIMITS[arch].smem_per_block_bytes
    for build in builds:
        d, tiles = build["head_dim"], tuple(build["tiles"])
        own = variant.default_tiling(d, ITEMSIZE[build["dtype"]], limit)
        assert tiles == (own.block_m, own.block_n)
        (launch,) = build["launches"]
        assert launch["spill_bytes"] == 0 and "local" not in launch["counts"]
        products = launch["products"]
        assert products and all(name.startswith(unit(variant)) for name in products)
        # Q K^T and P V of one tile, shared among the warps of the block that multiply.
        warps = launch["threads"] // 32 - (4 if unit(variant) == "HGMMA" else 0)
        assert launch["loop_flops"] == 4 * tiles[0] * tiles[1] * d // warps


def unit(variant: Variant) -> str:
    """What its products are called in SASS: those of a warp, or of a warpgroup."""
    return "HGMMA" if variant.max_arch == 90 else "HMMA"


def test_every_rung_is_shipped_in_its_dtypes() -> None:
    found = {(one.variant.name, one.problem.dtype) for one in shipped(90)}
    wanted = {(v.name, d) for v in RUNGS.values() for d in compiled_run.DTYPES if d in v.dtypes}
    assert found == wanted


def test_what_a_variant_cannot_be_built_for_is_none() -> None:
    io = VARIANTS["flash_kv_outer_io"]
    assert Shipped.of(io, "float32", 64, 90) is None
    assert Shipped.of(FLASH, "float32", 64, 61) is None


def launch_of(one: Shipped) -> tuple[CompiledLaunch, ...]:
    return tuple(
        CompiledLaunch(s.entry, s.threads, 99, 0, 0, s.smem_bytes, sass.InstructionMix({}, {}))
        for s in one.plan.steps
    )


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC and nvdisasm that are not there."""
    monkeypatch.setattr(compiled, "can_compile", lambda: True)
    monkeypatch.setattr(sass, "nvdisasm", lambda: "/bin/echo")
    monkeypatch.setattr(compiled_run, "nvrtc_version", lambda: "99.9")

    def fake(plan: object, arch: int) -> tuple[CompiledLaunch, ...]:
        return launch_of(next(one for one in shipped(arch) if one.plan == plan))

    monkeypatch.setattr(compiled_run, "compile_plan", fake)


@pytest.mark.usefixtures("compiler")
def test_recording_writes_what_is_then_up_to_date(tmp_path: Path) -> None:
    assert len(out_of_date(90, tmp_path)) == len(list(shipped(90)))
    written = record_compiled("the command", tmp_path)
    assert [path.name for path in written] == ["sm_80.json", "sm_90.json"]
    assert out_of_date(80, tmp_path) == out_of_date(90, tmp_path) == []
    record = read_record(90, tmp_path)
    assert (record["nvrtc"], record["command"]) == ("99.9", "the command")
    # A launch is one line, so that a change of one shows as one line.
    lines = written[1].read_text(encoding="utf-8").splitlines()
    assert sum('"entry"' in line for line in lines) == sum(len(o.plan.steps) for o in shipped(90))


@pytest.mark.usefixtures("compiler")
def test_a_build_is_the_records_or_made_here(tmp_path: Path) -> None:
    one = Shipped.of(FLASH, "float16", 64, 90)
    assert one is not None
    made = one.build(tmp_path)
    assert made is not None and made.source == "compiled here, NVRTC 99.9" and made.current
    record_compiled("x", tmp_path)
    recorded = one.build(tmp_path)
    assert recorded is not None and recorded.source == "recorded, NVRTC 99.9"


def test_an_old_record_is_better_than_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Shipped.of(FLASH, "float16", 64, 90)
    assert one is not None
    stale = replace(one, plan=replace(one.plan, macros={**one.plan.macros, "THREADS": 1}))

    def refuses(plan: object, arch: int) -> None:
        raise RuntimeError("does not compile")

    monkeypatch.setattr(compiled_run, "compile_plan", refuses)
    for here in (False, True):
        monkeypatch.setattr(compiled, "can_compile", lambda here=here: here)
        monkeypatch.setattr(sass, "nvdisasm", lambda: "/bin/echo")
        found = stale.build()
        assert found is not None and not found.current and found.source.startswith("recorded")


def test_without_nvdisasm_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sass, "nvdisasm", lambda: None)
    with pytest.raises(FileNotFoundError, match="pip install nvidia-cuda-nvdisasm"):
        record_compiled("x", tmp_path)
    assert not list(tmp_path.iterdir())


def test_nvrtc_gives_what_is_recorded() -> None:
    """One rung compiled here; another release of NVRTC may use other registers."""
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with CuPy")
    one = Shipped.of(FLASH, "float16", 64, 90)
    assert one is not None
    made, recorded = one.compiled(), one.build()
    assert recorded is not None
    for here, there in zip(made.launches, recorded.launches, strict=True):
        assert (here.entry, here.threads, here.smem_bytes, here.static_smem_bytes) == (
            there.entry, there.threads, there.smem_bytes, there.static_smem_bytes
        )  # fmt: skip
        assert here.spill_bytes == 0
        if compiled_run.nvrtc_version() in recorded.source and recorded.current:
            assert here.registers == there.registers
