"""Which kernels were shown correct on a GPU, as recorded in data/verified/<arch>.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fa_kernels.cuda.compile import kernel_hash, kernel_names

VERIFIED_DIR = Path(__file__).parents[2] / "data" / "verified"


def verified_archs() -> list[str]:
    """Architectures with a record, e.g. ["sm_90"]."""
    return sorted(path.stem for path in VERIFIED_DIR.glob("sm_*.json"))


def read_verified(arch: str) -> dict[str, Any]:
    """The record of one architecture; an empty one if there is none.

    Raises:
        ValueError: the file is not valid JSON or lacks its "kernels" table; names file and remedy.
    """
    path = VERIFIED_DIR / f"{arch}.json"
    if not path.exists():
        return {"kernels": {}, "pending": {}}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record["kernels"], dict):
            raise TypeError("'kernels' is not a table")
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path.name} is not a verification record ({error}): "
            "restore it with `git checkout data/verified` or run `make verify`."
        ) from error
    return record


def kernel_status(name: str, arch: str = "sm_90") -> str:
    """One of verified, changed (since it was verified), pending: <reason>, never run."""
    record = read_verified(arch)
    entry = record["kernels"].get(name)
    if entry and entry["hash"] == kernel_hash(name) and entry["failures"] == 0:
        return "verified"
    if name in record.get("pending", {}):
        return f"pending: {record['pending'][name]}"
    return "changed" if entry else "never run"


def unverified() -> dict[str, str]:
    """Kernels that are not verified on any architecture, with their status."""
    status = {}
    for name in kernel_names():
        per_arch = [kernel_status(name, arch) for arch in verified_archs()]
        if "verified" not in per_arch:
            status[name] = per_arch[0] if per_arch else "never run"
    return status
