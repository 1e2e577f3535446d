"""The seed of a widget's random inputs."""

from __future__ import annotations

from fa_kernels.problem import checked_int

MAX_SEED = 2**32 - 1


def checked_seed(seed: object) -> int:
    """`seed` as an int in [0, 2^32).

    Raises:
        ValueError: anything else; value, limit and remedy.
    """
    return checked_int("seed", seed, 0, MAX_SEED, "Any in that range draws other inputs.")
