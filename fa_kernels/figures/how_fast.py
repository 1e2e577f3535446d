"""The README's paragraph "How fast": rungs on tensor cores against their peers, and their calls."""

from __future__ import annotations

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
    forwards = list(_forwards(speed))
    if speed.run is None or not forwards:
        return ""
    paragraphs = [*forwards, _others(peers), *_backwards(backward)]
    paragraphs += [*_training(training), _status(), _calls(speed.run)]
    return "\n\n".join(map(_wrapped, filter(None, paragraphs)))


def _forwards(speed: RecordedSpeed) -> Iterator[str]:
    beside = " beside torch's FlashAttention-2 and cuDNN, in one process"
    for name in _timed(speed):
        start, how = ("", " likewise") if name != _timed(speed)[0] else ("**How fast.** ", beside)
        yield _against(speed, name, f"{start}`{VARIANTS[name].kernel}`{how}")


def _timed(speed: RecordedSpeed) -> list[str]:
    """Of `SHOWN`, what was timed beside both peers."""
    return [n for n in SHOWN if speed.ratios(n, FA2) and speed.ratios(n, CUDNN)]


def _wrapped(paragraph: str) -> str:
    """A paragraph in lines of at most 100 characters; a table as it is."""
    if paragraph.startswith("|"):
        return paragraph
    return textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)


def _against(
    speed: RecordedSpeed,
    ours: str,
    beginning: str,
) -> str:
    run = speed.run
    assert run is not None
    fa2, cudnn = (speed.ratios(ours, peer) for peer in (FA2, CUDNN))
    dims = sorted({problem.head_dim for problem in fa2})
    parts = _by_dim(fa2, "the speed of FlashAttention-2")
    means = [f"{geometric_mean(r for p, r in cudnn.items() if p.head_dim == d):.2f}" for d in dims]
    everywhere = speed.ratios(ours, FA2, least_seqlen=1)
    worst = min(everywhere, key=lambda problem: everywhere[problem])
    longest = max(problem.seqlen_q for problem in fa2)
    return (
        f"{beginning} ({run.device}, recorded run `{run.run_id}`; fp16 and bf16, with and without "
        f"a causal mask, N = {LONG_FROM} to {longest}): it has {_listed(parts)}, each a geometric "
        f"mean with the least and the greatest ratio. {_slower(fa2, 'FlashAttention-2')} Shorter "
        "sequences "
        f"included, the least ratio is {everywhere[worst]:.2f}, at d = {worst.head_dim}, "
        f"N = {worst.seqlen_q}. {_slower(cudnn, 'cuDNN')} It has {_listed(means)} times cuDNN's "
        f"speed at d = {_listed(map(str, dims))}."
    )


def _by_dim(ratios: Mapping[AttentionProblem, float], whose: str) -> list[str]:
    """ "1.12 times the speed of ... at d = 64 (1.09 to 1.15)", then the same of every other d."""
    parts: list[str] = []
    for d in sorted({problem.head_dim for problem in ratios}):
        found = [ratio for problem, ratio in ratios.items() if problem.head_dim == d]
        times = "times" if parts else f"times {whose}"
        parts.append(
            f"{geometric_mean(found):.2f} {times} at d = {d} ({min(found):.2f} to {max(found):.2f})"
        )
    return parts


def _others(runs: Sequence[PeersRun]) -> str:
    """Peers of other packages and of a compiler, each from the first run that has it; or ""."""
    ours = next(
        (n for n in SHOWN if any(run.times.ratios(n, p) for run in runs for p in OTHERS)), ""
    )
    said = []
    for peer, name in OTHERS.items():
        found = ((run.run, run.times.ratios(ours, peer)) for run in runs)
        run, ratios = next((pair for pair in found if pair[1]), (None, {}))
        if run is None:
            continue
        package = BASELINES[peer].distribution
        version = {"torch": run.about["torch"], **run.about.get("packages", {})}.get(package, "")
        dtypes = dict.fromkeys(SHORT_DTYPE[problem.dtype] for problem in ratios)
        seqlens = sorted({problem.seqlen_q for problem in ratios})
        said.append(
            f"Beside {name} (`{f'{package} {version}'.strip()}`; recorded "
            f"run `{run.run_id}`; {_listed(dtypes)}, with and without a causal mask, "
            f"N = {_listed(map(str, seqlens))}) it has {_listed(_by_dim(ratios, 'its speed'))}. "
            f"{_slower(ratios, name)}"
        )
    if not said:
        return ""
    return f"**Other peers.** `{VARIANTS[ours].kernel}` likewise. {' '.join(said)}"


def _backwards(speed: RecordedSpeed | None) -> Iterator[str]:
    """The same of the gradients, and of the first paper's figure 2 (left); none without a run."""
    if speed is None or speed.run is None:
        return
    both = {step.series: step.both for step in RecordedSteps(speed.run).steps}
    names = _timed(speed)
    for name in names:
        backward = VARIANTS[name].backward
        assert backward is not None
        start = "**Gradients.** " if name == names[0] else ""
        said = ""
        if {name, FA2, CUDNN} <= both.keys():
            ours, flash, cudnn = (f"{both[series].ms:.2f}" for series in (name, FA2, CUDNN))
            at = both[name].row
            said = (
                f" Forward and backward of the first paper's figure 2 (left; B = {at.batch}, "
                f"H = {at.nheads}, N = {at.seqlen_q}, d = {at.head_dim}, no dropout) together take "
                f"{ours} ms, FlashAttention-2's {flash} ms, cuDNN's {cudnn} ms."
            )
        yield _against(speed, name, f"{start}`{backward.kernel}` likewise") + said


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
                f"On sm_{variant.max_arch or variant.min_arch} it takes {_listed(ready)} first, "
                "where they take the call."
            )


def _slower(ratios: Mapping[AttentionProblem, float], peer: str) -> str:
    """At how many of the problems, and at which d, ours is slower."""
    slower = [problem for problem, ratio in ratios.items() if ratio < 1]
    if not slower:
        return f"It is slower than {peer} at none of these points."
    if len(slower) == len(ratios):
        return f"It is slower than {peer} at every point."
    dims = sorted({problem.head_dim for problem in slower})
    where = f"all at d = {dims[0]}" if len(dims) == 1 else f"at d = {_listed(map(str, dims))}"
    return f"It is slower than {peer} at {len(slower)} of these {len(ratios)} points, {where}."


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
