"""The record of what was shown correct on a GPU, and the test that holds every kernel to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.cuda import verified
from fa_kernels.cuda.compile import kernel_hash, kernel_names
from fa_kernels.cuda.verified import kernel_status, read_verified, unverified, verified_archs

FLASH, STANDARD = "04_flash_q_outer", "02_standard_tiled"


def test_no_kernel_changed_since_it_was_last_verified_on_a_gpu() -> None:
    """Run `make verify` on a GPU, or list the kernel under "pending" with a reason."""
    loose = {name: why for name, why in unverified().items() if not why.startswith("pending: ")}
    assert not loose, f"not shown correct on a GPU: {loose}"


def test_the_records_name_kernels_that_exist() -> None:
    for arch in verified_archs():
        record = read_verified(arch)
        assert record["arch"] == arch
        assert {*record["kernels"], *record["pending"]} <= set(kernel_names())
        assert all(reason.strip() for reason in record["pending"].values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(verified, "VERIFIED_DIR", tmp_path)
    return tmp_path


def entry(name: str, **changed: Any) -> dict[str, Any]:
    return {"hash": kernel_hash(name), "cases": 300, "failures": 0, **changed}


def write(folder: Path, arch: str = "sm_90", **record: Any) -> None:
    text = json.dumps({"arch": arch, "kernels": {}, "pending": {}, **record})
    (folder / f"{arch}.json").write_text(text, encoding="utf-8")


def test_without_a_record_nothing_was_run(folder: Path) -> None:
    assert verified_archs() == []
    assert read_verified("sm_90") == {"kernels": {}, "pending": {}}
    assert kernel_status(FLASH) == "never run"
    assert unverified() == dict.fromkeys(kernel_names(), "never run")


def test_verified_then_changed_then_pending(folder: Path) -> None:
    write(folder, kernels={FLASH: entry(FLASH)})
    assert kernel_status(FLASH) == "verified"
    assert set(unverified()) == set(kernel_names()) - {FLASH}
    write(folder, kernels={FLASH: entry(FLASH, hash="0" * 16)})
    assert kernel_status(FLASH) == unverified()[FLASH] == "changed"
    pending = {FLASH: "TMA loads, next GPU session"}
    write(folder, kernels={FLASH: entry(FLASH, hash="0" * 16)}, pending=pending)
    assert kernel_status(FLASH) == "pending: TMA loads, next GPU session"
    write(folder, kernels={}, pending=pending)
    assert unverified()[FLASH].startswith("pending: ")
    # Once it is verified again a stale reason no longer counts.
    write(folder, kernels={FLASH: entry(FLASH)}, pending=pending)
    assert kernel_status(FLASH) == "verified"


def test_a_kernel_that_failed_is_not_verified_and_not_called_changed(folder: Path) -> None:
    write(folder, kernels={FLASH: entry(FLASH, failures=2)})
    assert kernel_status(FLASH) == "failed"
    assert FLASH in unverified()


def test_one_architecture_is_enough(folder: Path) -> None:
    write(folder, "sm_80", kernels={FLASH: entry(FLASH, hash="0" * 16), STANDARD: entry(STANDARD)})
    write(folder, "sm_90", kernels={FLASH: entry(FLASH)})
    assert verified_archs() == ["sm_80", "sm_90"]
    assert FLASH not in unverified() and STANDARD not in unverified()
    assert kernel_status(FLASH, "sm_80") == "changed"
    assert kernel_status(STANDARD, "sm_90") == "never run"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"kernels": []}', b'{"kernels": null}',
        b'{"kernels": {"04_flash_q_outer": 3}}', b'{"kernels": {"04_flash_q_outer": {}}}',
        b'{"kernels": {"04_flash_q_outer": {"hash": "0"}}}',
        b'{"kernels": {}, "pending": ["04_flash_q_outer"]}',
    ],
)  # fmt: skip
def test_a_corrupt_record_names_file_and_remedy(folder: Path, content: bytes) -> None:
    (folder / "sm_90.json").write_bytes(content)
    sentence = r"^sm_90\.json is not a verification record \(.+\): restore it with `git checkout"
    for call in (lambda: kernel_status(FLASH), unverified, lambda: read_verified("sm_90")):
        with pytest.raises(ValueError, match=sentence):
            call()
