"""The stream that launches go to."""

from __future__ import annotations


def capturing() -> bool:
    """True while CuPy's current stream is captured in a CUDA graph."""
    import cupy

    return bool(cupy.cuda.get_current_stream().is_capturing())
