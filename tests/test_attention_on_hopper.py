"""The front door on a GPU with warpgroups, and on others: who runs a call, with which tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fa_kernels import call as calls
from fa_kernels.attention import attention, attention_backward
from fa_kernels.cuda import arrays, launch
from fa_kernels.cuda.compile import own_arch
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS
from tests.cuda.fake_cupy import GpuArray

KEPT = np.ones((512, 512), bool)
BOUNDS = {"cu_seqlens_q": (0, 200, 512), "cu_seqlens_k": (0, 200, 512)}
Chosen = Callable[..., tuple[str, Tiling]]


def half(rows: int = 512, keys: int = 512, d: int = 64) -> tuple[np.ndarray, ...]:
    """q, k, v of two heads in fp16, all zero: nothing computes with them."""
    q, k = (np.zeros((1, 2, n, d), np.float16) for n in (rows, keys))
    return q, k, k


class CupyArray(GpuArray):
    """An array that counts as one of CuPy's."""

    __module__ = "cupy"


def on_gpu(*arrays: np.ndarray) -> tuple[Any, ...]:
    return tuple(array.view(CupyArray) for array in arrays)


def saved(d: int = 64) -> tuple[np.ndarray, ...]:
    """d_out, q, k, v, out and lse of a call of `half`."""
    q = half(d=d)[0]
    return q, q, q, q, q, np.zeros((1, 2, 512), np.float32)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Tiling]]:
    """A GPU of 227 KiB per block that notes what it was asked to run; all kernels verified."""
    launches: list[tuple[Any, Tiling]] = []

    def run_on_gpu(run: Any, inputs: Any, problem: Any, tiling: Any, extras: Any, **_: Any) -> Any:
        launches.append((run, tiling))
        return inputs[: 2 if len(inputs) == 3 else 3]

    monkeypatch.setattr(arrays, "available", lambda: True)
    monkeypatch.setattr(arrays, "run_on_gpu", run_on_gpu)
    for module in (calls, launch):
        monkeypatch.setattr(module, "smem_limit_bytes", lambda: 227 * KIB)
    monkeypatch.setattr(calls, "refuse_memory", lambda what, need, pool: None)
    monkeypatch.setattr(calls, "unverified", lambda: {})
    return launches


def refuse_unless(arch: int) -> Callable[[str, int], None]:
    """`launch.refuse_old_gpu` on a GPU of that compute capability."""

    def refuse(kernel: str, min_arch: int) -> None:
        own = own_arch(kernel)
        if arch < min_arch or own not in (None, f"sm_{arch}a"):
            raise NotImplementedError(f"{kernel} is not for sm_{arch}")

    return refuse


@pytest.fixture
def chosen(launched: list[tuple[Any, Tiling]], monkeypatch: pytest.MonkeyPatch) -> Chosen:
    """Which variant ran a call, with which tiles; of three inputs forward, of six backward."""

    def chosen(*inputs: np.ndarray, arch: int = 90, **options: Any) -> tuple[str, Tiling]:
        monkeypatch.setattr(calls, "refuse_old_gpu", refuse_unless(arch))
        (attention if len(inputs) == 3 else attention_backward)(*inputs, backend="cuda", **options)
        run, tiling = launched[-1]
        every: dict[Any, str] = {v.run: v.name for v in VARIANTS.values()}
        every |= {v.backward.run: v.name for v in VARIANTS.values() if v.backward is not None}
        return every[run], tiling

    return chosen


def test_auto_takes_warpgroups_on_hopper_alone(chosen: Chosen) -> None:
    """Neither an A100 nor a later GPU has wgmma: there it is 05."""
    assert chosen(*half()) == ("flash_wgmma", Tiling(192, 128))
    assert chosen(*saved()) == ("flash_wgmma", Tiling(128, 128))
    for arch in (80, 86, 89, 100, 120):
        assert chosen(*half(), arch=arch) == ("flash_mma", Tiling(128, 128)), arch
        assert chosen(*saved(), arch=arch)[0] == "flash_mma", arch
        for inputs in (half(), saved()):
            with pytest.raises(NotImplementedError, match=f"06_flash_wgmma.* not for sm_{arch}"):
                chosen(*inputs, arch=arch, variant="flash_wgmma")
    assert chosen(*half(), arch=75)[0] == "flash_q_outer"
    assert chosen(*(x.astype(np.float32) for x in half()))[0] == "flash_q_outer"


@pytest.mark.parametrize("d", [1, 20, 63, 100])
def test_rows_that_tma_cannot_read_are_left_to_05(d: int, chosen: Chosen) -> None:
    assert chosen(*half(d=d))[0] == chosen(*saved(d))[0] == "flash_mma"
    wide = (d + 7) // 8 * 8
    assert chosen(*half(d=wide))[0] == chosen(*saved(wide))[0] == "flash_wgmma"
    for inputs in (half(d=d), saved(d)):
        with pytest.raises(NotImplementedError, match=f"d = {d} does not give: .*'flash_mma'"):
            chosen(*inputs, variant="flash_wgmma")


def test_packed_sequences_are_left_to_05(chosen: Chosen) -> None:
    assert chosen(*half(), **BOUNDS)[0] == chosen(*saved(), **BOUNDS)[0] == "flash_mma"
    for inputs in (half(), saved()):
        with pytest.raises(NotImplementedError, match="no packed sequences: .*variant='flash_mma'"):
            chosen(*inputs, **BOUNDS, variant="flash_wgmma")


def test_tiles_that_are_no_slabs_are_left_to_others(chosen: Chosen) -> None:
    assert chosen(*half(), tiling=Tiling(128, 64)) == ("flash_wgmma", Tiling(128, 64))
    assert chosen(*half(), tiling=Tiling(64, 32)) == ("flash_mma", Tiling(64, 32))
    assert chosen(*half(), tiling=Tiling(24, 64)) == ("flash_q_outer", Tiling(24, 64))
    with pytest.raises(ValueError, match=r"^block_n = 32: .* slabs of 64, so use 64, or variant='"):
        chosen(*half(), tiling=Tiling(64, 32), variant="flash_wgmma")


def test_gradients_that_06_has_not_are_left_to_05(chosen: Chosen) -> None:
    """A bias, a repeatable dq, more than 128 columns, other tiles; the forward has them."""
    bias = KEPT.astype(np.float32)
    for inputs, options, why in (
        (saved(), {"bias": bias}, "takes no bias"),
        (saved(), {"deterministic": True}, "is not deterministic"),
        (saved(192), {}, "takes d up to 128, got 192"),
    ):
        assert chosen(*inputs, **options)[0] == "flash_mma"
        with pytest.raises(NotImplementedError, match=f"{why}.* variant='flash_mma'"):
            chosen(*inputs, **options, variant="flash_wgmma")
    assert chosen(*half(), bias=bias)[0] == chosen(*half(d=192))[0] == "flash_wgmma"
    assert chosen(*saved(), tiling=Tiling(64, 64)) == ("flash_mma", Tiling(64, 64))
    with pytest.raises(ValueError, match="takes block_n = 128, block_m = 128 alone"):
        chosen(*saved(), tiling=Tiling(64, 64), variant="flash_wgmma")


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, 192), ({"causal": True}, 192), ({"window": (9, 0)}, 192), ({"mask": KEPT}, 128),
     ({"bias": KEPT.astype(np.float32)}, 128), ({"dropout_p": 0.5, "seed": 1}, 192),
     ({"dropout_p": 0.5, "dropout_keep": KEPT}, 128)],
)  # fmt: skip
def test_what_is_read_for_every_element_takes_the_third_warpgroup(
    options: dict[str, Any], rows: int, chosen: Chosen
) -> None:
    """Its registers. Tiles that are asked for stay as they are."""
    assert chosen(*half(), **options) == ("flash_wgmma", Tiling(rows, 128))
    asked = {**options, "tiling": Tiling(192, 128)}
    assert chosen(*half(), **asked) == ("flash_wgmma", Tiling(192, 128))


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (17, 23), (64, 65), (113, 203), (200, 100)])
def test_tiles_are_clipped_to_whole_slabs(rows: int, keys: int, chosen: Chosen) -> None:
    """To the next multiple of 64, where other kernels are clipped to one of 16."""
    wanted = Tiling(min(192, -(-rows // 64) * 64), min(128, -(-keys // 64) * 64))
    assert chosen(*half(rows, keys)) == ("flash_wgmma", wanted)
    assert chosen(*half(rows, keys), tiling=Tiling(192, 128)) == ("flash_wgmma", wanted)


def of_one_head(x: np.ndarray) -> np.ndarray:
    """Its first head, broadcast."""
    return np.broadcast_to(x[:, :1], x.shape, subok=True)


def between(x: np.ndarray) -> np.ndarray:
    """As large, beginning 2 bytes after a multiple of 16."""
    held = np.zeros(x.size + 16, x.dtype)
    start = -held.ctypes.data % 16 // 2 + 1
    return held[start : start + x.size].reshape(x.shape)


@pytest.mark.parametrize(
    ("view", "copied"),
    [(of_one_head, True), (lambda x: x[:, :, ::-1], True), (between, True),
     (lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), False)],
    ids=["broadcast", "reversed", "not aligned", "rows of all heads"],
)  # fmt: skip
def test_auto_copies_nothing_that_05_reads_where_it_lies(
    view: Callable[[np.ndarray], np.ndarray],
    copied: bool,
    chosen: Chosen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where "flash_wgmma" is asked for, its copies count as memory that the call needs."""
    needs: list[int] = []
    monkeypatch.setattr(calls, "refuse_memory", lambda what, need, pool: needs.append(need))
    for inputs, places in ((half(), (0, 1, 2)), (saved(), (0, 1, 2, 3))):
        chosen(*on_gpu(*inputs), variant="flash_wgmma")
        plain = needs[-1]
        for place in places:
            arrays = [view(x) if i == place else x for i, x in enumerate(inputs)]
            name = chosen(*on_gpu(*arrays))[0]
            assert name == ("flash_mma" if copied else "flash_wgmma"), place
            assert chosen(*on_gpu(*arrays), variant="flash_wgmma")[0] == "flash_wgmma"
            assert needs[-1] == plain + copied * inputs[place].nbytes, place
    assert chosen(*(view(x) for x in half()))[0] == "flash_wgmma", "host arrays are copied anyway"


def test_the_one_tiling_of_a_backward_is_taken_of_short_sequences(chosen: Chosen) -> None:
    """As `Call.tiling` of its own default says it, which is not clipped."""
    short = tuple(x[:, :, :64] for x in saved())
    assert chosen(*short) == ("flash_wgmma", Tiling(128, 128))
    assert chosen(*short, tiling=Tiling(128, 128)) == ("flash_wgmma", Tiling(128, 128))
