"""A GPU that is not there, for every test of launches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fa_kernels.cuda import arguments, launch
from tests.cuda.fake_cupy import Kernel, fake_cupy


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A stand-in for CuPy with one GPU, and the launches made on it."""
    made: list[Any] = []
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(launch, "load_entry", lambda name, macros, entry: Kernel(entry, made))
    arguments._mask_on_gpu.cache_clear()
    arguments._packed_on_gpu.cache_clear()
    yield made
    arguments._mask_on_gpu.cache_clear()
    arguments._packed_on_gpu.cache_clear()
