"""Verify kernel by kernel, in several processes and within a time budget, and record it."""

from __future__ import annotations

import datetime
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from fa_kernels.cuda.compile import kernel_hash
from fa_kernels.cuda.fingerprint import plan_fingerprint
from fa_kernels.cuda.launch import gpu_name, refuse_old_gpu
from fa_kernels.cuda.run_decode import DECODE_KERNEL, MIN_ARCH
from fa_kernels.cuda.verified import VERIFIED_DIR, kernel_status, read_verified
from fa_kernels.measure import memory
from fa_kernels.measure.about import current_arch, describe_run
from fa_kernels.measure.tally import OutOfTime, Share, Tally
from fa_kernels.measure.verify import verify_forward
from fa_kernels.measure.verify_backward import verify_backward
from fa_kernels.measure.verify_decode import DECODE, verify_decode
from fa_kernels.units import GIB
from fa_kernels.variants import VARIANTS

#: What the largest case of one process takes (S and P of 65536 x 65536, and the truth), with room.
PROCESS_BYTES = 24 * GIB


def kernels_of(names: Sequence[str], only_unverified: bool = False) -> list[str]:
    """Kernels of the named variants, forward and backward, in rung order; of all if none is named.

    "decode_split_kv", which is no variant of attention, has its kernel, too.

    `only_unverified`: without those whose record on this GPU's architecture holds.

    Raises:
        ValueError: a name that is no variant's; the message lists those there are.
    """
    known = [*VARIANTS, DECODE]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"variants {unknown} are not known: name any of {', '.join(known)}.")
    chosen = [VARIANTS[name] for name in names or VARIANTS if name != DECODE]
    kernels = {DECODE_KERNEL} if DECODE in (names or known) else set()
    kernels |= {variant.kernel for variant in chosen}
    kernels |= {variant.backward.kernel for variant in chosen if variant.backward is not None}
    if only_unverified:
        arch = current_arch()
        kernels = {kernel for kernel in kernels if kernel_status(kernel, arch) != "verified"}
    return sorted(kernels)


def is_for_this_gpu(kernel: str, say: Callable[[str], None] = print) -> bool:
    """False, and said, of a kernel that is written for other GPUs than the current one."""
    oldest = {DECODE_KERNEL: MIN_ARCH}
    for variant in VARIANTS.values():
        oldest[variant.kernel] = variant.min_arch
        if variant.backward is not None:
            oldest[variant.backward.kernel] = variant.min_arch
    try:
        refuse_old_gpu(kernel, oldest[kernel])
    except NotImplementedError as refusal:
        say(f"left out: {refusal}")
        return False
    return True


def default_jobs() -> int:
    """Processes that share this GPU: at most one for two cores, and for `PROCESS_BYTES` of it."""
    return max(1, min(8, (os.cpu_count() or 1) // 2, memory.free_bytes() // PROCESS_BYTES))


def verify(
    kernels: Sequence[str],
    say: Callable[[str], None] = print,
    jobs: int = 1,
    seconds: float | None = None,
    verbose: bool = False,
) -> Iterator[tuple[str, Tally]]:
    """Every case of every kernel; a kernel and what was found, as soon as it is through.

    A kernel is verified with all variants that are launched from it, or not at all: of one that
    `seconds` cut short nothing is given.

    Args:
        kernels: file names without suffix, as `kernels_of` gives them.
        say: takes progress and faults; the processes of `jobs` > 1 print theirs instead.
        jobs: processes that share the GPU; 1 stays in this one.
        seconds: no case begins later than this.
        verbose: say each case and how long it took.
    """
    deadline = math.inf if seconds is None else time.time() + seconds
    if jobs == 1:
        for kernel in kernels:
            tally = Tally(say=say, verbose=verbose, deadline=deadline)
            try:
                _verify_share(kernel, Share(), tally, os.cpu_count() or 1)
            except OutOfTime:
                say(f"{kernel} was cut short by the time limit: nothing of it is recorded.")
                return
            yield kernel, tally
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # A CUDA context does not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        work: dict[str, list[Future[Tally]]] = {
            kernel: [
                pool.submit(_in_process, kernel, Share(i, jobs), verbose, deadline, threads)
                for i in range(jobs)
            ]
            for kernel in kernels
        }
        for kernel, futures in work.items():
            try:
                parts = [future.result() for future in futures]
            except OutOfTime:
                say(f"{kernel} was cut short by the time limit: nothing of it is recorded.")
                continue
            whole = Tally()
            for part in parts:
                whole.add(part)
            yield kernel, whole


def _verify_share(kernel: str, share: Share, tally: Tally, threads: int) -> None:
    if kernel == DECODE_KERNEL:
        verify_decode(kernel, share, tally, threads)
        return
    forward = any(variant.kernel == kernel for variant in VARIANTS.values())
    (verify_forward if forward else verify_backward)(kernel, share, tally, threads)


def _in_process(kernel: str, share: Share, verbose: bool, deadline: float, threads: int) -> Tally:
    tally = Tally(say=_say_at_once, verbose=verbose, deadline=deadline)
    if time.time() > deadline:
        raise OutOfTime
    start = time.time()
    _verify_share(kernel, share, tally, threads)
    if verbose:
        tally.say(f"{time.time() - start:.1f} s {kernel} {share}, {tally.compiled} builds")
    return tally


def _say_at_once(text: str) -> None:
    print(text, flush=True)


def write_verified(tallies: dict[str, Tally], command: str, root: Path = VERIFIED_DIR) -> Path:
    """Record tallies in <root>/<arch>.json; entries of other kernels stay as they are."""
    arch = current_arch()
    record = read_verified(arch, root)  # other kernels keep the entries of that folder
    about = describe_run(command, "")
    kernels = dict(record["kernels"])
    for kernel, tally in tallies.items():
        kernels[kernel] = {
            "hash": kernel_hash(kernel),
            "plans": plan_fingerprint(kernel),
            "cases": tally.cases,
            "failures": tally.failures,
            "refused_on_this_gpu": tally.skipped,
            "variants": {
                name: {
                    "max_abs_err": errors.max_abs_err,
                    "worst_share_of_limit": round(errors.worst_ratio, 4),
                }
                for name, errors in tally.variants.items()
            },
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": gpu_name(),
            "driver": about["driver"],
            "nvrtc": about["nvrtc"],
            "cupy": about["cupy"],
            "command": command,
        }
    pending = {k: v for k, v in record.get("pending", {}).items() if k not in tallies}
    text = json.dumps({"arch": arch, "kernels": kernels, "pending": pending}, indent=2)
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{arch}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return path
