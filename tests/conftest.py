"""One BLAS thread per test process: pytest-xdist already uses every core, and tiles are small."""

from __future__ import annotations

import os

# Before NumPy is imported. Two workers of two threads each took three times as long on two cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
