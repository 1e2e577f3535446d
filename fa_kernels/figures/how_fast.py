"""The README's paragraph "How fast": rungs on tensor cores against their peers, and their calls."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fa_kernels.cuda.verified import unverified
from fa_kernels.figures.recorded_peers import PeersRun
from fa_kernels.figures.recorded_speed import LONG_FROM, RecordedSpeed, geometric_mean
from fa_kernels.figures.recorded_steps import RecordedSteps
from fa_kernels.figures.recorded_training import RecordedTraining
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.records import OURS, Row, Run
from fa_kernels.problem import SHORT_DTYPE, AttentionProblem
from fa_kernels.variants import FAST, VARIANTS

#: Whose speed is spoken about, the fastest first, and beside whom: torch's FlashAttention-2, cuDNN.
SHOWN, FA2, CUDNN = tuple(reversed(FAST)), "torch_flash", "torch_cudnn"
#: The one of them that "auto" takes on every GPU.
ANYWHERE = "flash_mma"
#: What it leaves to that one.
_LEFT = {
    "flash_wgmma": "Packed sequences and rows that do not start at multiples of 16 bytes stay with "
    "05, and of backward passes a bias, d > 128 and a deterministic dq."
}
#: Other peers that are spoken about where a run of kind "peers" has them, and their names.
OTHERS = {"fa3": "FlashAttention-3", "fa4": "FlashAttention-4", "flex": "FlexAttention"}
#: `detail` of the rows that say what a call costs the host.
_CUPY, _TORCH = "CuPy arrays", "torch tensors"


def how_fast(
    speed: RecordedSpeed,
    backward: RecordedSpeed | None = None,
    training: RecordedTraining | None = None,
    peers: Sequence[PeersRun] = (),
) -> str:
    """Markdown; every number from the run of its pass. Empty where that does not hold both peers.

    Ratios are times of the peer over ours: above 1 ours is faster.
    """
    if speed.run is None or not _timed(speed):
        return ""
    paragraphs = [_beginning(speed, backward), _table(speed, backward), _figure2(backward)]
    paragraphs += [*_others(peers), *_training(training), _status(), _calls(speed.run)]
    return "\n\n".join(map(_wrapped, filter(None, paragraphs)))


def _timed(speed: RecordedSpeed) -> list[str]:
    """Of `SHOWN`, what was timed beside both peers."""
    return [n for n in SHOWN if speed.ratios(n, FA2) and speed.ratios(n, CUDNN)]


def _wrapped(paragraph: str) -> str:
    """A paragraph in lines of at most 100 characters; a table as it is."""
    if paragraph.startswith("|"):
        return paragraph
    return textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)


def _beginning(speed: RecordedSpeed, backward: RecordedSpeed | None) -> str:
    run = speed.run
    assert run is not None
    problems = [p for name in _timed(speed) for p in speed.ratios(name, FA2)]
    dtypes = _listed(dict.fromkeys(SHORT_DTYPE[p.dtype] for p in problems))
    gradients = ""
    if backward is not None and backward.run is not None and _timed(backward):
        gradients = f" and, for gradients, `{backward.run_id}`"
    return (
        "**How fast.** Speed as a multiple of that of torch's FlashAttention-2 and cuDNN, timed in "
        "turn in one process: their time over ours, so above 1 ours is faster. Geometric mean, and "
        f"the least and the greatest ratio, over {dtypes}, with and without a causal mask, "
        f"N = {LONG_FROM} to {max(p.seqlen_q for p in problems)} ({run.device}, recorded run "
        f"`{run.run_id}`{gradients}). No entry: the kernel does not take that d."
    )


def _table(speed: RecordedSpeed, backward: RecordedSpeed | None) -> str:
    """A row for each kernel and peer: by d, then where ours is slower, then shorter sequences."""
    passes = [one for one in (speed, backward) if one is not None and one.run is not None]
    found = [(one, name) for one in passes for name in _timed(one)]
    dims = sorted({p.head_dim for one, name in found for p in one.ratios(name, FA2)})
    short = min(p.seqlen_q for one, name in found for p in one.ratios(name, FA2, least_seqlen=1))
    heads = [
        "kernel",
        "beside",
        *(f"d = {d}" for d in dims),
        "slower at",
        f"least ratio, N ≥ {short}",
    ]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for one, name in found:
        variant = VARIANTS[name]
        kernel = variant.kernel
        if one.pass_ == "bwd":
            assert variant.backward is not None
            kernel = variant.backward.kernel
        for peer, beside in ((FA2, "FlashAttention-2"), (CUDNN, "cuDNN")):
            everywhere = one.ratios(name, peer, least_seqlen=1)
            worst = min(everywhere, key=lambda problem: everywhere[problem])
            least = f"{everywhere[worst]:.2f} (d = {worst.head_dim}, N = {worst.seqlen_q})"
            cells = _cells(one.ratios(name, peer), dims)
            lines.append(_line([f"`{kernel}`", beside, *cells, least]))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(ratios: Mapping[AttentionProblem, float], dims: Iterable[int]) -> Iterator[str]:
    """Mean, least and greatest of every d, then at how many points ours is slower."""
    for d in dims:
        found = [ratio for problem, ratio in ratios.items() if problem.head_dim == d]
        yield f"{geometric_mean(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else ""
    yield f"{sum(ratio < 1 for ratio in ratios.values())} of {len(ratios)}"


def _figure2(speed: RecordedSpeed | None) -> str:
    """Forward and backward of the first paper's figure 2 (left); "" without a run of them."""
    if speed is None or speed.run is None:
        return ""
    both = {step.series: step.both for step in RecordedSteps(speed.run).steps}
    ours = [name for name in SHOWN if name in both]
    if not ours or not {FA2, CUDNN} <= both.keys():
        return ""
    names = {name: f"`{VARIANTS[name].kernel}`" for name in ours}
    names |= {FA2: "FlashAttention-2", CUDNN: "cuDNN"}
    times = _listed(f"{both[series].ms:.2f} ms with {name}" for series, name in names.items())
    at = both[ours[0]].row
    return (
        f"Forward and backward of the first paper's figure 2 (left; B = {at.batch}, "
        f"H = {at.nheads}, N = {at.seqlen_q}, d = {at.head_dim}, no dropout) together take {times}."
    )


def _others(runs: Sequence[PeersRun]) -> tuple[str, ...]:
    """Peers of other packages and of a compiler, each beside the fastest rung that a run has it
    with, from the first such run; or ()."""
    found: list[tuple[str, str, Run, dict[AttentionProblem, float]]] = []
    for peer in OTHERS:
        timed = (
            (peer, ours, run.run, run.times.ratios(ours, peer)) for ours in SHOWN for run in runs
        )
        found += itertools.islice((one for one in timed if one[-1]), 1)
    if not found:
        return ()
    dims = sorted({p.head_dim for *_, ratios in found for p in ratios})
    heads = ["ours", "beside", *(f"d = {d}" for d in dims), "slower at", "measured"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for peer, ours, run, ratios in found:
        package = BASELINES[peer].distribution
        version = {"torch": run.about["torch"], **run.about.get("packages", {})}.get(package, "")
        dtypes = dict.fromkeys(SHORT_DTYPE[problem.dtype] for problem in ratios)
        seqlens = sorted({problem.seqlen_q for problem in ratios})
        where = (
            f"`{f'{package} {version}'.strip()}`, {_listed(dtypes)}, "
            f"N = {_listed(map(str, seqlens))}; `{run.run_id}`"
        )
        kernel = f"`{VARIANTS[ours].kernel}`"
        lines.append(_line([kernel, OTHERS[peer], *_cells(ratios, dims), where]))
    said = "**Other peers**, of other packages and of torch's compiler"
    waiting = [
        f"`{VARIANTS[name].kernel}`"
        for name in SHOWN
        if all(SHOWN.index(name) < SHOWN.index(ours) for _, ours, *_ in found)
    ]
    if waiting:
        said += f" ({_listed(waiting)}: not yet timed beside them)"
    return f"{said}:", "\n".join(lines)


def _training(training: RecordedTraining | None) -> tuple[str, ...]:
    """Steps of a whole model, ours beside the peers', and a table; () without a run of all."""
    steps = [] if training is None else training.steps
    steps = [step for step in steps if {FA2, CUDNN} <= step.times.keys()]
    if training is None or training.run is None or not steps:
        return ()
    lines = ["| N | dropout | ours | FlashAttention-2 | cuDNN |", "| --- | --- | --- | --- | --- |"]
    for step in steps:
        times = (f"{step.times[name].median:.1f} ms" for name in (step.ours, FA2, CUDNN))
        cells = (str(step.row.seqlen_q), f"{step.row.dropout_p:g}", *times)
        lines.append(f"| {' | '.join(cells)} |")
    row = steps[0].row
    said = (
        f"**Training.** A step of GPT-2 small through `fa_kernels.integrations.transformers` "
        f"({row.batch * row.seqlen_q:,} tokens, bf16; recorded run `{training.run.run_id}`), with "
        f"our attention (`{VARIANTS[steps[0].ours].kernel}` and its gradients), torch's "
        "FlashAttention-2 and its cuDNN backend:"
    )
    return said, "\n".join(lines)


def _status() -> str:
    """Who runs them: "auto", or who names them as long as not every case is verified."""
    variant, waiting = VARIANTS[ANYWHERE], unverified()
    assert variant.backward is not None
    calls = {
        variant.kernel: (f'fa.attention(q, k, v, variant="{ANYWHERE}")', "04_flash_q_outer"),
        variant.backward.kernel: (
            f'fa.attention_backward(..., variant="{ANYWHERE}")',
            "04_flash_q_outer_backward",
        ),
    }
    taken = [f"`{kernel}`" for kernel in calls if kernel not in waiting]
    said = []
    if taken:
        said.append(f'`variant="auto"` takes {_listed(taken)} for fp16 and bf16 on a GPU.')
        said += _before_it(waiting)
    for kernel, (call, instead) in calls.items():
        if kernel in waiting:
            said.append(
                f"Call `{kernel}` by name, `{call}`: the default takes a kernel only when every "
                f"case is verified, and this one is {waiting[kernel]}. Until then it takes "
                f"`{instead}`; `make verify` on your GPU changes that."
            )
    return " ".join(said)


def _before_it(waiting: Mapping[str, str]) -> Iterator[str]:
    """Rungs that "auto" takes before it on the one architecture that they are written for."""
    for variant in map(VARIANTS.__getitem__, FAST[FAST.index(ANYWHERE) + 1 :]):
        kernels = [variant.kernel, variant.backward.kernel if variant.backward else ""]
        ready = [f"`{kernel}`" for kernel in kernels if kernel and kernel not in waiting]
        if ready:
            yield (
                f"On sm_{variant.max_arch or variant.min_arch} it takes {_listed(ready)} first. "
                f"{_LEFT[variant.name]}"
            )


def _calls(run: Run) -> str:
    """What a call costs the host, and a build; "" where the run does not say."""
    known = {(row.provider, row.detail): row for row in run.select(metric="launch_us", status="ok")}
    ours = [known.get((OURS, detail)) for detail in (_CUPY, _TORCH)]
    theirs = next((row for (provider, _), row in known.items() if provider == FA2), None)
    built = [row.median for row in run.select(metric="compile_s", status="ok") if row.median]
    if None in (*ours, theirs) or not built:
        return ""
    cupy, torch, sdpa = (_microseconds(row) for row in (*ours, theirs))
    assert theirs is not None and ours[0] is not None
    kernel = VARIANTS[ours[0].variant].kernel
    return (
        f"A call of `fa.attention` that runs `{kernel}`, once compiled, costs the "
        f"host {cupy} µs with CuPy arrays and {torch} µs with torch tensors; torch's own "
        f"`scaled_dot_product_attention` costs {sdpa} µs (queued calls, N = {theirs.seqlen_q}). "
        f"The first call of a build compiles for {min(built):.1f} to {max(built):.1f} s; the "
        "next process finds it on disk."
    )


def _microseconds(row: Row | None) -> str:
    assert row is not None and row.median is not None
    return f"{row.median:.1f}"


def _listed(words: Iterable[str]) -> str:
    """ "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
