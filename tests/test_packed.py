"""Packed sequences as a value: where each one lies, and what is refused in words."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem

ENDS_Q, ENDS_K = (0, 9, 9, 14), (0, 5, 11, 11)


def test_sequences_lie_between_the_boundaries() -> None:
    packed = Packed(ENDS_Q, ENDS_K)
    assert list(packed.slices()) == [
        (slice(0, 9), slice(0, 5)), (slice(9, 9), slice(5, 11)), (slice(9, 14), slice(11, 11)),
    ]  # fmt: skip
    assert (packed.sequences, packed.total_q, packed.total_k) == (3, 14, 11)
    assert (packed.longest_q, packed.longest_k) == (9, 6)


def test_boundaries_of_any_whole_numbers_make_the_same_value() -> None:
    from_arrays = Packed(np.array(ENDS_Q, np.int32), list(ENDS_K))  # type: ignore[arg-type]
    assert from_arrays == Packed(ENDS_Q, ENDS_K)
    assert hash(from_arrays) == hash(Packed(ENDS_Q, ENDS_K))
    assert all(type(bound) is int for bound in from_arrays.cu_seqlens_q)
    with pytest.raises(dataclasses.FrozenInstanceError):
        from_arrays.cu_seqlens_q = (0, 1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        ((0,), r"must start with 0 and name a sequence"),
        ((), r"must start with 0"),
        ((1, 5, 9), r"cu_seqlens_q = \[1, 5, 9\] must start with 0"),
        ((0, 5, 3), r"cu_seqlens_q falls from 5 to 3 at sequence 1"),
        ((0, 5.5), r"is not a row of whole numbers"),
        (7, r"cu_seqlens_q = 7 is not a row of whole numbers"),
        (None, r"is not a row of whole numbers"),
        ("05", r"is not a row of whole numbers"),
        (((0, 5), (0, 7)), r"is not a row of whole numbers"),
    ],
)
def test_boundaries_that_name_no_sequences_are_refused(bounds: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence + r".*give \[0, end of sequence 0"):
        Packed(bounds, ENDS_K)


def test_the_same_is_said_of_keys_by_their_name() -> None:
    with pytest.raises(ValueError, match=r"^cu_seqlens_k falls from 9 to 2"):
        Packed(ENDS_Q, (0, 9, 2, 4))


def test_both_sides_name_the_same_sequences() -> None:
    with pytest.raises(ValueError, match=r"cu_seqlens_q names 3 sequences, cu_seqlens_k 2: give"):
        Packed(ENDS_Q, (0, 5, 11))


def problem(**changed: Any) -> AttentionProblem:
    sizes = {"batch": 3, "nheads": 4, "seqlen_q": 9, "seqlen_k": 6, "head_dim": 8}
    return AttentionProblem(**{**sizes, "packed": Packed(ENDS_Q, ENDS_K), **changed})


def test_bytes_are_those_of_the_rows_that_there_are() -> None:
    p = problem(nheads_kv=2, dtype="float32")
    assert (p.q_rows, p.kv_rows) == (4 * 14, 2 * 11)
    assert (p.q_bytes, p.kv_bytes, p.lse_bytes) == (4 * 14 * 8 * 4, 2 * 11 * 8 * 4, 4 * 14 * 4)


def test_every_sequence_is_a_problem_of_its_own() -> None:
    p = problem(causal="bottom_right", window=(3, 0), dropout_p=0.1, seed=3, nheads_kv=2)
    (q, k, first), (_, _, second), (_, _, third) = p.sequences()
    assert (q, k) == (slice(0, 9), slice(0, 5))
    options = {"causal": "bottom_right", "window": (3, 0), "dropout_p": 0.1, "seed": 3}
    for one, sizes in ((first, (9, 5)), (second, (0, 6)), (third, (5, 0))):
        assert one == AttentionProblem(1, 4, *sizes, 8, nheads_kv=2, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("changed", [{"batch": 2}, {"seqlen_q": 14}, {"seqlen_k": 11}])
def test_sizes_that_are_not_those_of_the_sequences_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"packed sequences need 3, 9, 6: the number of sequences"):
        problem(**changed)


def test_a_block_mask_is_refused_with_two_ways_out() -> None:
    mask = BlockMask.from_dense(np.ones((1, 1), bool), 16, 16)
    with pytest.raises(NotImplementedError, match=r"once per sequence, or pass an element mask"):
        problem(block_mask=mask)


def test_captions_say_so() -> None:
    assert "packed, longest N_q = 9, N_k = 6" in problem().describe()
