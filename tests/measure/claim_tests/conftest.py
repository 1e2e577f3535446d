"""The evidence that is at hand, read once, and none at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.device import device
from fa_kernels.measure.claim_tests.evidence import Evidence


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    return Evidence.on(device("h200"))


@pytest.fixture(scope="session")
def nothing(evidence: Evidence) -> Evidence:
    """No runs and no data sheets."""
    return replace(evidence, runs=(), sheets=())
