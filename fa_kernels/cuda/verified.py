"""Which kernels were shown correct on a GPU, as recorded in data/verified/<arch>.json."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from fa_kernels.cuda.compile import kernel_hash, kernel_names

VERIFIED_DIR = Path(__file__).parents[2] / "data" / "verified"


def verified_archs() -> list[str]:
    """Architectures with a record, e.g. ["sm_90"]."""
    return sorted(path.stem for path in VERIFIED_DIR.glob("sm_*.json"))


def read_verified(arch: str, root: Path | None = None) -> dict[str, Any]:
    """The record of one architecture under `root`, by default data/verified; empty if none.

    Raises:
        ValueError: the file is not valid JSON or its tables are not what `verify` writes; names
            file and remedy.
    """
    path = (root or VERIFIED_DIR) / f"{arch}.json"
    if not path.exists():
        return {"kernels": {}, "pending": {}}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        for table in (record["kernels"], record.setdefault("pending", {})):
            if not isinstance(table, dict):
                raise TypeError("'kernels' and 'pending' must be tables")
        for name, entry in record["kernels"].items():
            if not {"hash", "failures"} <= entry.keys():
                raise KeyError(f"{name} lacks hash or failures")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path.name} is not a verification record ({error}): "
            "restore it with `git checkout data/verified` or run `make verify`."
        ) from error
    return record


def kernel_status(name: str, arch: str = "sm_90") -> str:
    """One of verified, failed, changed (since it was run), pending: <reason>, never run."""
    # Here, because it loads the plans of every kernel, which `import fa_kernels` need not wait for.
    from fa_kernels.cuda.fingerprint import plan_fingerprint

    record = read_verified(arch)
    entry = record["kernels"].get(name)
    unchanged = (
        entry is not None
        and entry["hash"] == kernel_hash(name)
        and entry.get("plans", plan_fingerprint(name)) == plan_fingerprint(name)
    )
    if unchanged and entry["failures"] == 0:
        return "verified"
    if name in record["pending"]:
        return f"pending: {record['pending'][name]}"
    if entry is None:
        return "never run"
    return "failed" if unchanged else "changed"


def unverified() -> dict[str, str]:
    """Kernels that are not verified on any architecture, with their status."""
    paths = [VERIFIED_DIR / f"{arch}.json" for arch in verified_archs()]
    stamps = [path.stat() for path in paths]
    states = ((p, s.st_mtime_ns, s.st_size) for p, s in zip(paths, stamps, strict=True))
    return dict(_unverified(tuple(states)))


@functools.lru_cache(maxsize=4)
def _unverified(records: tuple[tuple[Path, int, int], ...]) -> dict[str, str]:
    """As `unverified`, once for each state of the record files: every "auto" call on a GPU asks."""
    status = {}
    for name in kernel_names():
        per_arch = [kernel_status(name, path.stem) for path, _, _ in records]
        if "verified" not in per_arch:
            status[name] = per_arch[0] if per_arch else "never run"
    return status
