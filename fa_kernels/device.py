"""One GPU's published numbers as a value, read from data/devices/<slug>.json, each with a source.

Source: the sheets themselves; data/schema/device.schema.json documents their format. What a run
measures on a GPU is not here: it lives in data/measured/.
"""

from __future__ import annotations

import contextlib
import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .problem import dtype_name
from .units import GIB, KIB, MIB

DEVICES_DIR = Path(__file__).parents[1] / "data" / "devices"

#: Key in the sheet -> (attribute of `Device`, unit in the sheet, factor to the attribute's unit).
#: A factor makes a whole number, None keeps a real one. Units are fixed: no reader converts.
NUMBERS: dict[str, tuple[str, str, int | None]] = {
    "sm_count": ("sm_count", "SMs", 1),
    "smem_per_sm": ("smem_per_sm_bytes", "KiB", KIB),
    "smem_per_block_optin": ("smem_per_block_bytes", "KiB", KIB),
    "l1_smem_per_sm": ("l1_smem_per_sm_bytes", "KiB", KIB),
    "l2": ("l2_bytes", "MiB", MIB),
    "registers_per_sm": ("registers_per_sm", "32-bit registers", 1),
    "max_threads_per_sm": ("max_threads_per_sm", "threads", 1),
    "hbm_capacity": ("hbm_capacity_bytes", "GiB", GIB),
    "hbm_bandwidth": ("hbm_bandwidth_gb_s", "GB/s", None),
    "fp32_tflops": ("fp32_tflops", "TFLOP/s", None),
    "fp16_tensor_tflops": ("fp16_tensor_tflops", "TFLOP/s", None),
    "bf16_tensor_tflops": ("bf16_tensor_tflops", "TFLOP/s", None),
    "boost_clock": ("boost_clock_mhz", "MHz", None),
}
#: Bytes a clock from the shared memory of an SM: 32 banks of 32 bits (CUDA Programming Guide).
SMEM_BYTES_PER_CLOCK = 32 * 4
_TEXTS = ("slug", "name", "variant", "memory_type")
#: How a source was read: the document's own text, a quotation of it, a device's printout, nothing.
CHECKED = ("text", "quoted", "reported", "memory")


@dataclass(frozen=True)
class Device:
    """One GPU as its vendor describes it: capacities in bytes, rates in GB/s and dense TFLOP/s.

    `smem_per_block_bytes` is what one block can have after opting in; `l1_smem_per_sm_bytes` is the
    larger figure data sheets call SRAM (L1 and shared memory together). `bf16_tensor_tflops` is
    None where the tensor cores have no bfloat16. Tensor-core rates accumulate in fp32. "hbm" is the
    suite's word for device memory, also where `memory_type` is GDDR.
    """

    slug: str
    name: str
    variant: str
    memory_type: str
    arch: str
    sm_count: int
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    l1_smem_per_sm_bytes: int
    l2_bytes: int
    registers_per_sm: int
    max_threads_per_sm: int
    hbm_capacity_bytes: int
    hbm_bandwidth_gb_s: float
    fp32_tflops: float
    fp16_tensor_tflops: float
    bf16_tensor_tflops: float | None
    boost_clock_mhz: float
    cuda_names: tuple[str, ...] = field(repr=False)
    sources: Mapping[str, str] = field(repr=False, compare=False)

    @property
    def sm(self) -> int:
        """Compute capability as one number: 90 for sm_90."""
        return int(self.arch.removeprefix("sm_"))

    @property
    def smem_bandwidth_gb_s(self) -> float:
        """Peak rate of the shared memory of all SMs together: banks times SMs times boost clock."""
        return SMEM_BYTES_PER_CLOCK * self.sm_count * self.boost_clock_mhz / 1e3

    def is_called(self, cuda_name: str) -> bool:
        """True if `cuda_name`, as CUDA reports a GPU, is one of this sheet's names in full."""
        return _plain(cuda_name) in {_plain(name) for name in self.cuda_names}

    def peak_tflops(self, dtype: object, tensor_cores: bool) -> float:
        """The arithmetic ceiling in TFLOP/s for `dtype` operands, accumulated in fp32.

        CUDA cores do every dtype at the fp32 rate here: our kernels convert to fp32 on load.

        Raises:
            ValueError: the dtype has no tensor-core rate on this GPU.
        """
        name = dtype_name(dtype)
        rates = {"float16": self.fp16_tensor_tflops, "bfloat16": self.bf16_tensor_tflops}
        rate = rates.get(name) if tensor_cores else self.fp32_tflops
        if rate is None:
            raise ValueError(
                f"{name} has no tensor-core rate on {self.name} ({self.arch}): "
                "use tensor_cores=False, or float16."
            )
        return rate

    def ridge_flop_per_byte(self, dtype: object, tensor_cores: bool) -> float:
        """FLOP per byte of device memory above which arithmetic binds, not bandwidth (roofline).

        Raises:
            ValueError: as `peak_tflops`.
        """
        return self.peak_tflops(dtype, tensor_cores) * 1e3 / self.hbm_bandwidth_gb_s

    def with_source(self, attribute: str) -> str:
        """Document, place and URL that `attribute` comes from, with the sheet's note if it has one.

        Raises:
            ValueError: `attribute` is not a sourced number.
        """
        if attribute not in self.sources:
            known = ", ".join(self.sources)
            raise ValueError(f"{attribute!r} has no source of its own: ask for one of {known}.")
        return self.sources[attribute]


def _refuse(path: Path, problem: str) -> ValueError:
    """The one sentence for every unusable sheet: file, what is wrong, remedy."""
    return ValueError(
        f"data/devices/{path.name} {problem}. Restore it with `git checkout -- data/devices`."
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        sheet = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refuse(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):  # bad JSON and bad UTF-8 are both ValueErrors
        raise _refuse(path, "is not valid JSON") from None
    if not isinstance(sheet, dict):
        raise _refuse(path, "does not hold one JSON object")
    known = {*_TEXTS, "cuda_names", "compute_capability", *NUMBERS}
    if missing := sorted(known - sheet.keys()):
        raise _refuse(path, f"lacks {', '.join(missing)}")
    if unknown := sorted(sheet.keys() - known):
        raise _refuse(path, f"holds {', '.join(unknown)}, which no sheet has")
    return sheet


def _source(path: Path, key: str, entry: object, unit: str) -> str:
    """Check what every number carries beside its value; return source and note as one text."""
    if not isinstance(entry, dict) or "value" not in entry:
        raise _refuse(path, f"holds {key} without a value")
    if entry.get("unit") != unit:
        raise _refuse(path, f"gives {key} in {entry.get('unit')!r}: the unit must be {unit!r}")
    if entry.get("checked") not in CHECKED:
        raise _refuse(path, f"does not say how {key} was checked: {', '.join(CHECKED)}")
    source, note = entry.get("source"), entry.get("note", "")
    if not isinstance(source, str) or not source.strip() or not isinstance(note, str):
        raise _refuse(path, f"gives no source for {key}")
    return f"{source} ({note})" if note else source


def _value(path: Path, key: str, entry: dict[str, Any]) -> float | int | None:
    value, (_, unit, scale) = entry["value"], NUMBERS[key]
    if "tensor" in key and entry.get("dense") is not True:
        # Data sheets since Ampere print twice this rate, for 2:4 sparse operands attention lacks.
        raise _refuse(path, f"does not mark {key} as dense: halve a rate printed with sparsity")
    if value is None and key == "bf16_tensor_tflops":
        return None
    # The comparison is also false for NaN and infinity; the limit keeps int -> float safe.
    if type(value) not in (int, float) or not 0 < value < 1e9:
        shown = reprlib.repr(value)
        raise _refuse(path, f"holds {key} = {shown}: it must be a positive number below 1e9")
    if scale is None:
        return float(value)
    if not float(value * scale).is_integer():
        raise _refuse(path, f"holds {key} = {value!r} {unit}, which is not a whole number")
    return int(value * scale)


def _arch(path: Path, entry: dict[str, Any]) -> str:
    """The text "9.0" as "sm_90"."""
    value = entry["value"]
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]+\.[0-9]+", value):
        raise _refuse(path, f"holds compute_capability = {value!r}: write it as the text '9.0'")
    return "sm_" + value.replace(".", "")


def load_device(path: Path) -> Device:
    """The device described by one sheet.

    Raises:
        ValueError: missing, unreadable or malformed; one sentence with the file and the remedy.
    """
    sheet = _read(path)
    for key in _TEXTS:
        if not isinstance(sheet[key], str) or not sheet[key].strip():
            raise _refuse(path, f"holds {key} = {sheet[key]!r}: it must be a text")
    if sheet["slug"] != path.stem:
        raise _refuse(path, f"says it is {sheet['slug']!r}: slug and file name must agree")
    names = sheet["cuda_names"]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise _refuse(path, "must list the names the driver reports in cuda_names")
    capability = sheet["compute_capability"]
    sources = {"arch": _source(path, "compute_capability", capability, "major.minor")}
    values: dict[str, Any] = {key: sheet[key] for key in _TEXTS}
    for key, (attribute, unit, _) in NUMBERS.items():
        sources[attribute] = _source(path, key, sheet[key], unit)
        values[attribute] = _value(path, key, sheet[key])
    arch = _arch(path, capability)
    return Device(**values, arch=arch, cuda_names=tuple(names), sources=sources)


_load_once = cache(load_device)


def list_devices() -> tuple[str, ...]:
    """The slugs of all sheets, sorted; no file is opened."""
    return tuple(sorted(path.stem for path in DEVICES_DIR.glob("*.json")))


def device(slug: str) -> Device:
    """The GPU with this slug, such as "h200".

    Raises:
        ValueError: no such sheet, or a sheet that cannot be used; names file, fault and remedy.
    """
    known = list_devices()
    if slug in known:
        return _load_once(DEVICES_DIR / f"{slug}.json")
    remedy = "Restore missing sheets with `git checkout -- data/devices`."
    if not known:
        raise ValueError(f"device = {slug!r} is not known: data/devices holds no sheet. {remedy}")
    raise ValueError(f"device = {slug!r} is not known: choose one of {', '.join(known)}. {remedy}")


def readable_devices() -> list[Device]:
    """Every device whose sheet can be read, by slug.

    Asking for one of the others with `device` gives the sentence that says what is wrong with it.
    """
    found = []
    for slug in list_devices():
        with contextlib.suppress(ValueError):
            found.append(device(slug))
    return found


def _plain(cuda_name: str) -> str:
    # Older drivers report "A100-SXM4-40GB", newer ones put "NVIDIA" in front.
    return " ".join(cuda_name.split()).lower().removeprefix("nvidia ")


def match_device(cuda_name: str, sm: int, memory_bytes: int) -> Device | None:
    """The sheet of a live GPU, from the name, sm (90 for sm_90) and total memory CUDA reports.

    None when no sheet fits: a name must be listed in full, so that a laptop "RTX 4090", an
    "H200 NVL" or a MIG slice is not given the ceilings of another product.

    Raises:
        ValueError: nothing fits and a sheet could not be read, so the right one may be missing.
    """
    broken: ValueError | None = None
    for slug in list_devices():
        try:
            sheet = device(slug)
        except ValueError as error:
            broken = broken or error
            continue
        # Reported memory is below the capacity by ECC (T4: 1/16) and the driver's reserve.
        fits = 0.88 <= memory_bytes / sheet.hbm_capacity_bytes <= 1.01
        if sheet.is_called(cuda_name) and fits and sm == sheet.sm:
            return sheet
    if broken is not None:
        raise broken
    return None
