"""fa_kernels.device: every number of every sheet, the lookups, and the sentences for bad sheets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels import device as dv

SLUGS = ("a100-40gb", "a100-80gb", "h100-sxm", "h200", "rtx-4090", "t4")
NOT_NUMBERS = ("slug", "name", "variant", "memory_type", "cuda_names")
KIB, GIB = 1024, 1024**3


def raw(slug: str) -> dict[str, Any]:
    return json.loads((dv.DEVICES_DIR / f"{slug}.json").read_text(encoding="utf-8"))


@pytest.fixture
def sheets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of data/devices that a test may damage."""
    folder = tmp_path / "devices"
    shutil.copytree(dv.DEVICES_DIR, folder)
    monkeypatch.setattr(dv, "DEVICES_DIR", folder)
    return folder


def shown_alone(error: ValueError) -> bool:
    """No JSON or KeyError traceback is printed above the sentence."""
    return error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)


def damage(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    sheet = json.loads(path.read_text(encoding="utf-8"))
    change(sheet)
    path.write_text(json.dumps(sheet), encoding="utf-8")


def test_the_sheets_are_the_ones_the_suite_promises() -> None:
    assert dv.list_devices() == SLUGS
    assert [dv.device(slug).slug for slug in SLUGS] == list(SLUGS)


@pytest.mark.parametrize("slug", SLUGS)
def test_every_number_says_where_it_comes_from(slug: str) -> None:
    for key, entry in raw(slug).items():
        if key in NOT_NUMBERS:
            continue
        source = entry["source"]
        from_memory = source.startswith("from memory, unverified: ")
        assert from_memory or re.search(r"https://\S+", source), f"{slug} {key}: {source}"
        assert from_memory == (entry["checked"] == "memory"), key


@pytest.mark.parametrize("slug", SLUGS)
def test_every_matrix_rate_is_dense(slug: str) -> None:
    rates = [entry for key, entry in raw(slug).items() if "tensor" in key]
    assert len(rates) == 2
    assert all(entry["dense"] is True for entry in rates)


# FLOP per SM and clock on tensor cores (dense, fp32 accumulation) and on CUDA cores, and the two
# clocks in GHz, from the architecture documents: a sparse or mistyped rate is off by far more.
SILICON = {
    "a100-40gb": (2048, 1.410, 128, 1.410),
    "a100-80gb": (2048, 1.410, 128, 1.410),
    "h100-sxm": (4096, 1.830, 256, 1.980),
    "h200": (4096, 1.830, 256, 1.980),
    "rtx-4090": (512, 2.520, 256, 2.520),
    "t4": (1024, 1.590, 128, 1.590),
}


@pytest.mark.parametrize("slug", SLUGS)
def test_rates_follow_from_sms_and_clocks(slug: str) -> None:
    gpu = dv.device(slug)
    tensor_flop, tensor_ghz, cuda_flop, cuda_ghz = SILICON[slug]
    tensor = gpu.sm_count * tensor_flop * tensor_ghz / 1e3
    assert gpu.fp16_tensor_tflops == pytest.approx(tensor, rel=0.005)
    assert gpu.fp32_tflops == pytest.approx(gpu.sm_count * cuda_flop * cuda_ghz / 1e3, rel=0.01)
    assert gpu.boost_clock_mhz == pytest.approx(cuda_ghz * 1e3)
    assert gpu.bf16_tensor_tflops in (gpu.fp16_tensor_tflops, None)


@pytest.mark.parametrize(
    ("slug", "arch", "block", "per_sm", "l1", "l2_mib", "gib", "threads"),
    [
        ("a100-40gb", "sm_80", 163, 164, 192, 40, 40, 2048),
        ("a100-80gb", "sm_80", 163, 164, 192, 40, 80, 2048),
        ("h100-sxm", "sm_90", 227, 228, 256, 50, 80, 2048),
        ("h200", "sm_90", 227, 228, 256, 60, 141, 2048),
        ("rtx-4090", "sm_89", 99, 100, 128, 72, 24, 1536),
        ("t4", "sm_75", 64, 64, 96, 4, 16, 1024),
    ],
)
def test_capacities_in_bytes(
    slug: str, arch: str, block: int, per_sm: int, l1: int, l2_mib: int, gib: int, threads: int
) -> None:
    gpu = dv.device(slug)
    assert (gpu.arch, gpu.sm) == (arch, int(arch[3:]))
    assert gpu.smem_per_block_bytes == block * KIB
    assert gpu.smem_per_sm_bytes == per_sm * KIB
    assert gpu.l1_smem_per_sm_bytes == l1 * KIB
    assert gpu.l2_bytes == l2_mib * KIB**2
    assert gpu.hbm_capacity_bytes == gib * GIB
    assert (gpu.registers_per_sm, gpu.max_threads_per_sm) == (65536, threads)
    assert all(type(v) is int for v in (gpu.l2_bytes, gpu.hbm_capacity_bytes, gpu.sm_count))


def test_the_a100_80gb_sheet_is_the_sxm4_module_not_the_pcie_card() -> None:
    gpu = dv.device("a100-80gb")
    assert gpu.hbm_bandwidth_gb_s == 2039  # the PCIe card has 1935
    assert "SXM4" in gpu.name
    assert "1935" in gpu.variant


@pytest.mark.parametrize(
    ("slug", "dtype", "tensor_cores", "ridge"),
    [
        ("h200", "fp16", True, 206),
        ("h200", np.dtype("float16"), True, 206),
        ("h200", "bfloat16", True, 206),
        ("h200", "float32", False, 14),
        ("h200", "float16", False, 14),
        ("h100-sxm", "float16", True, 295),
        ("a100-40gb", "float16", True, 201),
        ("a100-80gb", "float16", True, 153),
        ("rtx-4090", "float16", True, 164),
        ("t4", "float16", True, 203),
    ],
)
def test_ridge_in_flop_per_byte(slug: str, dtype: Any, tensor_cores: bool, ridge: int) -> None:
    assert round(dv.device(slug).ridge_flop_per_byte(dtype, tensor_cores)) == ridge


@pytest.mark.parametrize(("slug", "dtype"), [("t4", "bf16"), ("h200", "fp32")])
def test_no_tensor_core_rate_is_said_in_words(slug: str, dtype: str) -> None:
    with pytest.raises(ValueError, match=r"no tensor-core rate on NVIDIA .*tensor_cores=False"):
        dv.device(slug).ridge_flop_per_byte(dtype, True)
    assert dv.device(slug).ridge_flop_per_byte(dtype, False) > 0


def test_with_source_names_document_and_caveat() -> None:
    gpu = dv.device("h200")
    assert "CUDA Programming Guide" in gpu.with_source("smem_per_block_bytes")
    assert "50 MB" in gpu.with_source("l2_bytes")  # the figure usually quoted, and why not
    assert gpu.with_source("arch").startswith("PyTorch")
    with pytest.raises(ValueError, match="'colour' has no source of its own: ask for one of"):
        gpu.with_source("colour")


def test_a_device_is_frozen_and_loaded_once() -> None:
    gpu = dv.device("h200")
    assert gpu is dv.device("h200")
    with pytest.raises(FrozenInstanceError):
        gpu.sm_count = 1  # type: ignore[misc]
    assert len({gpu, dv.load_device(dv.DEVICES_DIR / "h200.json")}) == 1  # a value: equal, hashable
    assert asdict(gpu)["sources"]["l2_bytes"] == gpu.with_source("l2_bytes")


@pytest.mark.parametrize("slug", ["h201", "", "../h200", "H200", None, 9.0, ["h200"]])
def test_an_unknown_device_names_value_choices_and_remedy(slug: Any) -> None:
    with pytest.raises(ValueError, match=r"choose one of a100-40gb, .*git checkout") as caught:
        dv.device(slug)
    assert f"device = {slug!r} is not known" in str(caught.value)


def edit(key: str, part: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda sheet: sheet[key].update({part: value})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda s: s.pop("l2"), "lacks l2"),
        (lambda s: s.pop("cuda_names"), "lacks cuda_names"),
        (lambda s: s.update(l3=s["l2"]), "holds l3, which no sheet has"),
        (lambda s: s.update(slug="h100"), "slug and file name must agree"),
        (lambda s: s.update(name=""), "holds name = ''"),
        (lambda s: s.update(cuda_names=[]), "cuda_names"),
        (lambda s: s.update(cuda_names=[1]), "cuda_names"),
        (lambda s: s.update(l2=50), "holds l2 without a value"),
        (lambda s: s["l2"].pop("source"), "gives no source for l2"),
        (edit("l2", "source", "  "), "gives no source for l2"),
        (edit("l2", "checked", "yes"), "does not say how l2 was checked"),
        (edit("l2", "unit", "MB"), "gives l2 in 'MB': the unit must be 'MiB'"),
        (edit("l2", "value", None), "holds l2 = None"),
        (edit("l2", "value", "50"), "holds l2 = '50'"),
        (edit("l2", "value", True), "holds l2 = True"),
        (edit("l2", "value", -50), "holds l2 = -50"),
        (edit("l2", "value", 0), "holds l2 = 0"),
        (edit("l2", "value", float("nan")), "holds l2 = nan"),
        (edit("l2", "value", float("inf")), "holds l2 = inf"),
        (edit("l2", "value", 10**400), "holds l2 = 1000"),
        (edit("sm_count", "value", 131.5), "holds sm_count = 131.5 SMs, which is not"),
        (edit("compute_capability", "value", 9.0), "holds compute_capability = 9.0"),
        (edit("compute_capability", "value", "9"), "holds compute_capability = '9'"),
        (edit("fp16_tensor_tflops", "dense", False), "fp16_tensor_tflops as dense: halve"),
        (lambda s: s["bf16_tensor_tflops"].pop("dense"), "bf16_tensor_tflops as dense: halve"),
        (edit("fp16_tensor_tflops", "value", None), "holds fp16_tensor_tflops = None"),
    ],
)
def test_a_malformed_sheet_is_refused_in_one_sentence(
    sheets: Path, change: Callable[[dict[str, Any]], object], fault: str
) -> None:
    damage(sheets / "h200.json", change)
    with pytest.raises(ValueError, match="git checkout -- data/devices") as caught:
        dv.device("h200")
    assert str(caught.value).startswith("data/devices/h200.json ")
    assert fault in str(caught.value)
    assert shown_alone(caught.value)
    assert dv.device("t4").sm_count == 40, "other sheets must stay usable"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is not valid JSON"),
        (b'{"slug": "h200", "name', "is not valid JSON"),
        (b"<<<<<<< HEAD\n{}", "is not valid JSON"),
        (b"\xff\xfe\x00", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[1, 2]", "does not hold one JSON object"),
        (b"{}", "lacks bf16_tensor_tflops, boost_clock"),
    ],
)
def test_a_corrupt_file_is_refused_in_one_sentence(
    sheets: Path, content: bytes, fault: str
) -> None:
    (sheets / "h200.json").write_bytes(content)
    with pytest.raises(ValueError, match="git checkout") as caught:
        dv.device("h200")
    assert str(caught.value).startswith(f"data/devices/h200.json {fault}")
    assert shown_alone(caught.value)


def test_missing_and_unreadable_files(sheets: Path) -> None:
    (sheets / "h200.json").unlink()
    with pytest.raises(ValueError, match=r"'h200' is not known: choose one of .*git checkout"):
        dv.device("h200")
    with pytest.raises(ValueError, match=r"h200\.json cannot be read \(No such file"):
        dv.load_device(sheets / "h200.json")
    (sheets / "h200.json").mkdir()
    with pytest.raises(ValueError, match=r"h200\.json cannot be read \(Is a directory"):
        dv.device("h200")
    shutil.rmtree(sheets)
    with pytest.raises(ValueError, match=r"data/devices holds no sheet.*git checkout"):
        dv.device("h200")
    assert dv.list_devices() == ()


@pytest.mark.parametrize(
    ("cuda_name", "sm", "memory_bytes", "slug"),
    [
        ("NVIDIA H200", 90, 143156 * 1024**2, "h200"),
        ("NVIDIA H100 80GB HBM3", 90, 84942979072, "h100-sxm"),
        ("NVIDIA A100-SXM4-40GB", 80, 42405855232, "a100-40gb"),
        ("A100-SXM4-40GB", 80, 42405855232, "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", 80, 42405855232, "a100-40gb"),
        ("nvidia  a100-sxm4-80gb ", 80, 85100068864, "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", 89, 25250627584, "rtx-4090"),
        ("Tesla T4", 75, 15843721216, "t4"),
        ("NVIDIA H200 NVL", 90, 143156 * 1024**2, None),
        ("NVIDIA H200 MIG 1g.18gb", 90, 17 * GIB, None),
        ("NVIDIA H200", 90, 17 * GIB, None),
        ("NVIDIA H200", 100, 143156 * 1024**2, None),
        ("NVIDIA H100 PCIe", 90, 84942979072, None),
        ("NVIDIA A100 80GB PCIe", 80, 85100068864, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 89, 16 * GIB, None),
        ("NVIDIA GeForce RTX 4090 D", 89, 25250627584, None),
        ("", 90, 0, None),
    ],
)
def test_match_device(cuda_name: str, sm: int, memory_bytes: int, slug: str | None) -> None:
    found = dv.match_device(cuda_name, sm, memory_bytes)
    assert (found.slug if found else None) == slug


def test_devices_are_told_apart_by_their_full_name() -> None:
    assert dv.device("h200").is_called("NVIDIA H200")
    assert dv.device("h200").is_called(" nvidia  h200 ")
    assert not dv.device("h200").is_called("NVIDIA H200 NVL")
    assert dv.device("t4").is_called("Tesla T4")


def test_match_device_with_a_corrupt_sheet(sheets: Path) -> None:
    (sheets / "a100-40gb.json").write_text("{", encoding="utf-8")
    found = dv.match_device("Tesla T4", 75, 15843721216)
    assert found is not None
    assert found.slug == "t4"
    # Nothing fits, perhaps because the sheet that would fit is the corrupt one: say so.
    with pytest.raises(ValueError, match=r"a100-40gb\.json is not valid JSON"):
        dv.match_device("NVIDIA A100-SXM4-40GB", 80, 42405855232)


def test_the_schema_accepts_the_sheets_and_knows_every_key() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((dv.DEVICES_DIR.parent / "schema/device.schema.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    assert set(schema["required"]) == {*NOT_NUMBERS, "compute_capability", *dv.NUMBERS}
    for slug in SLUGS:
        validator.validate(raw(slug))
    for key, part, value in [
        ("fp16_tensor_tflops", "dense", False),
        ("l2", "unit", "MB"),
        ("l2", "source", ""),
        ("l2", "checked", "memory"),
        ("l2", "sources", "typo"),
        ("l2", "value", None),
    ]:
        sheet = raw("h200")
        sheet[key][part] = value
        assert not validator.is_valid(sheet), f"{key}.{part} = {value!r} was accepted"


def test_importing_the_module_opens_no_sheet_and_loads_no_heavy_package() -> None:
    code = (
        "import sys, pathlib\n"
        "def refuse(*a, **k): raise AssertionError('a sheet was opened')\n"
        "pathlib.Path.read_text = refuse\n"
        "import fa_kernels.device as d\n"
        "d.list_devices()\n"
        "heavy = {'jsonschema', 'cupy', 'torch', 'plotly', 'ipywidgets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    root = Path(dv.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


def test_the_rate_of_shared_memory() -> None:
    """The 19 TB/s that the papers give for an A100: 108 SMs, 128 bytes, 1.41 GHz."""
    assert dv.device("a100-40gb").smem_bandwidth_gb_s == pytest.approx(19490, abs=5)
