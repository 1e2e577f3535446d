"""Timing, memory, records, sweeps and peers. CuPy and torch load on first use."""
