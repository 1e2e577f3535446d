"""GPT-2 small generating text on record: with and without a KV cache, eager and by our kernels."""

from __future__ import annotations

import copy
import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fa_kernels.measure import memory, records, timing
from fa_kernels.measure.generation_steps import Steps
from fa_kernels.measure.point import Contender, row_of, whole_model
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import open_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import MIB

#: GPT-2 small (124 million parameters): heads and head_dim of its attention.
NHEADS, HEAD_DIM = 12, 64
#: Its vocabulary, and where it generates.
VOCABULARY, DEVICE = 50257, "cuda"
#: Positions that the model has, and sequences that it writes at the same time.
POSITIONS, BATCH = 8192, 16
#: Tokens of the prompts; new ones with a cache, and without, where each costs as much as a prompt.
PROMPTS, NEW, NEW_UNCACHED = (512, 4096), 32, 4
#: Times are taken with the first new token, and when this part of them is there.
MARKS = (1 / 4, 1 / 2, 3 / 4, 1)
REPEATS = 2
#: Steps whose logits are compared before anything is timed.
CHECKED = 3
#: One rounding of bf16, relative.
BF16_STEP = 2.0**-8
METHOD = (
    "GPT2LMHeadModel of transformers with random weights in bf16 (speed does not depend on them), "
    "random prompts, the likeliest token at each step, chosen on the GPU; with a cache a step is "
    "one CUDA graph, captured before it is timed, and both ways with one have the same cache, "
    "allocated once (eager attention reads its whole capacity, and a mask hides what is empty); "
    "the rows say where no graph could be captured; "
    "logits of the prompt and of further steps are held against the same model in float64 first; "
    "wall clock from the prompt to so many new tokens, between two synchronisations, the ways "
    "taking turns; median with 20th and 80th percentile; memory: the most bytes asked of the "
    "allocators while all tokens are generated, cache and graph included, in a run of its own"
)


@dataclass(frozen=True)
class Way:
    """How text is generated: the rows' provider and variant, whose attention, whose cache.

    `cache` is "" for none: each step computes the whole sequence again.
    """

    provider: str
    variant: str
    implementation: str
    cache: str = ""


EAGER = Way("torch_eager", "eager", "eager")
OURS = Way(records.OURS, "flash_mma", "fa_kernels")
EAGER_CACHED = Way("torch_eager", "eager_cached", "eager", "FixedCache")
OURS_CACHED = Way(records.OURS, "decode_split_kv", "fa_kernels_fixed", "FixedCache")
WAYS = (EAGER, OURS, EAGER_CACHED, OURS_CACHED)


def problems() -> list[AttentionProblem]:
    """The last attention call of each text, were the prompt's rows asked again."""
    return [
        AttentionProblem(BATCH, NHEADS, prompt, prompt + NEW, HEAD_DIM, "bfloat16", "bottom_right")
        for prompt in PROMPTS
    ]


def new_tokens(problem: AttentionProblem, way: Way) -> int:
    """Tokens that a way writes: all, or, without a cache, few."""
    new = problem.seqlen_k - problem.seqlen_q
    return new if way.cache else min(NEW_UNCACHED, new)


def marks_of(new: int) -> list[int]:
    """Numbers of new tokens at which the time is taken: the first one, and up to all of them."""
    return sorted({1, *(max(1, round(part * new)) for part in MARKS)})


@functools.lru_cache(maxsize=1)
def _weights() -> Any:
    """The model, made once: what a failed capture leaves behind must not disturb the next one."""
    import torch
    import transformers

    config = transformers.GPT2Config(n_positions=POSITIONS, attn_implementation="eager")
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()


def _model(way: Way, problem: AttentionProblem) -> Any:
    model = copy.deepcopy(_weights())
    model.set_attn_implementation(way.implementation)
    return model


@dataclass
class _Writer:
    """A model that writes on, one way."""

    way: Way
    problem: AttentionProblem
    model: Any
    #: Seconds from the prompt to each of the marks, run by run.
    seconds: list[list[float]] = field(default_factory=list)
    error: float = 0.0
    peak_bytes: int = 0
    steps: Steps | None = None

    def prepare(self, tokens: Any) -> None:
        """Allocate the cache and capture a step, if this way has them."""
        if self.way.cache:
            prompt = tokens[:, : self.problem.seqlen_q]
            masked = self.way.implementation == "eager"
            self.steps = Steps(self.model, prompt, self.problem.seqlen_k, masked)

    def logits(self, tokens: Any) -> Any:
        """Of the token after `tokens` (batch, n), all of the text so far: (batch, vocabulary).

        A cache gets the prompt, then the last token; without one the whole text is read again.
        """
        import torch

        if self.steps is None:
            with torch.no_grad():
                return self.model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
        if tokens.shape[1] == self.problem.seqlen_q:
            return self.steps.begin(tokens)
        self.steps.token.copy_(tokens[:, -1:])
        self.steps.step()
        return self.steps.logits

    def check(self, tokens: Any, truth: Any) -> float:
        """The largest error of the logits after the prompt and after each of the next tokens.

        `truth`: (batch, steps, vocabulary).
        """
        errors = [
            float(
                (self.logits(tokens[:, : self.problem.seqlen_q + i]).double() - right).abs().max()
            )
            for i, right in enumerate(truth.unbind(1))
        ]
        return max(errors)

    def write(self, tokens: Any) -> list[float]:
        """Fill `tokens` behind the prompt; seconds until each of the marks."""
        import torch

        begin, new = self.problem.seqlen_q, new_tokens(self.problem, self.way)
        marks = [begin + at for at in marks_of(new)]
        torch.cuda.synchronize()
        start, found = time.perf_counter(), []
        for n in range(begin, begin + new):
            logits = self.logits(tokens[:, :n])
            # A step has chosen already.
            chosen = n > begin and self.steps is not None
            tokens[:, n] = self.steps.token[:, 0] if chosen and self.steps else logits.argmax(-1)
            if n + 1 in marks:
                torch.cuda.synchronize()
                found.append(time.perf_counter() - start)
        return found

    def whole(self, tokens: Any) -> None:
        """Everything that a text needs, from allocating its cache on."""
        self.prepare(tokens)
        self.write(tokens)


def _truth(problem: AttentionProblem, tokens: Any) -> Any:
    """Logits after the prompt and after each checked token, in float64, attention written out."""
    import torch

    model = _model(EAGER, problem).double()
    end = problem.seqlen_q + CHECKED
    with torch.no_grad():  # one by one: S of all of them in float64 would fill the GPU
        return torch.cat(
            [
                model(one[None, :end], use_cache=False, logits_to_keep=CHECKED + 1).logits
                for one in tokens
            ]
        )


def measure_generation(
    problem: AttentionProblem, ways: Sequence[Way] = WAYS, repeats: int = REPEATS
) -> Iterator[records.Row]:
    """Rows of every way: ms from the prompt to so many new tokens, and the most memory.

    seqlen_q is the prompt, seqlen_k the prompt and the tokens that are there by then. The first of
    the `ways` is the plain one: where its logits are off by more than a twentieth of the largest,
    or another's by more than twice its error and one rounding, a way is recorded as failed and not
    timed.
    """
    import torch

    generator = torch.Generator(device=DEVICE).manual_seed(1)
    shape = (problem.batch, problem.seqlen_k)
    tokens = torch.randint(0, VOCABULARY, shape, device=DEVICE, generator=generator)
    truth = _truth(problem, tokens)
    largest = float(truth.abs().max())
    limit = largest / 20
    writers: list[_Writer] = []
    for way in ways:
        try:
            writer = _Writer(way, problem, _model(way, problem))
            writer.prepare(tokens)
            writer.error = writer.check(tokens, truth)
        except Exception as refusal:  # a peer may refuse in many ways; the run must go on
            yield _failed(problem, way, f"{type(refusal).__name__}: {refusal}")
            continue
        if not writer.error <= limit:
            why = (
                f"wrong: error {writer.error:.3g} of logits up to {largest:.3g}, limit {limit:.3g}"
            )
            yield _failed(problem, way, why)
            continue
        if way is ways[0]:
            limit = min(limit, 2 * writer.error + BF16_STEP * largest)
        writers.append(writer)
    del truth
    for writer in writers:  # also what the first run of each compiles and loads
        writer.steps = None  # its cache counts, too
        whole = functools.partial(writer.whole, tokens.clone())
        _, writer.peak_bytes = memory.peak_extra_bytes(whole)
    for _ in range(repeats):
        for writer in writers:
            writer.seconds.append(writer.write(tokens.clone()))
    for writer in writers:
        yield from _rows(writer)
    writers.clear()
    gc.collect()
    memory.free_pools()


def _rows(writer: _Writer) -> Iterator[records.Row]:
    problem, contender = writer.problem, _contender(writer.way)
    how = f"; {writer.steps.how}" if writer.steps else ""
    common: dict[str, Any] = {"error": writer.error, "detail": _detail(writer.way) + how}
    new = new_tokens(problem, writer.way)
    for mark, seconds in zip(marks_of(new), zip(*writer.seconds, strict=True), strict=True):
        latency = timing.summarise([1e3 * one for one in seconds])
        at = replace(problem, seqlen_k=problem.seqlen_q + mark)
        row = row_of(at, contender, "latency_ms", value=latency.median, **common)
        yield replace(row, pass_="step", p20=latency.p20, p80=latency.p80, n=latency.n)
    at = replace(problem, seqlen_k=problem.seqlen_q + new)
    row = row_of(at, contender, "extra_mem_bytes", value=writer.peak_bytes, **common)
    yield replace(row, pass_="step")


def _detail(way: Way) -> str:
    cache = "no cache: the whole text again at each step"
    if way.cache:
        cache = f"cache: {way.cache}, allocated once"
        if way.implementation == "eager":
            cache += ", of which a step attends the whole capacity with a mask"
    return f"attention: {way.implementation}; {cache}"


def _contender(way: Way) -> Contender:
    return whole_model(way.provider, way.variant, "writes")


def _failed(problem: AttentionProblem, way: Way, why: str) -> records.Row:
    detail = f"{_detail(way)}; {' '.join(why.split())}"
    row = row_of(problem, _contender(way), "latency_ms", status="failed", detail=detail)
    return replace(row, pass_="step")


def record_generation(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path, bool]:
    """Measure every problem into a run of kind "generation"; its folder, and whether it is whole.

    Arguments and errors as `backward_run.record_backward`.

    Raises:
        ModuleNotFoundError: torch or transformers is not installed.
    """
    import transformers  # noqa: F401  before there is a folder

    from fa_kernels.integrations import fixed_cache
    from fa_kernels.integrations.transformers import register

    register(variant=OURS.variant)
    # By name: its logits are held against float64 here, whatever the record of `verify` says.
    fixed_cache.register(backend="cuda", variant=OURS.variant)
    start = time.monotonic()
    folder, rows = open_run("generation", label, command, root, resume, commit, method=METHOD)
    done = {(row.batch, row.seqlen_q) for row in rows}
    work = [problem for problem in problems() if (problem.batch, problem.seqlen_q) not in done]
    say(f"{len(rows)} rows recorded, {len(work)} problems to do")

    def measure(problem: AttentionProblem) -> list[records.Row]:
        return list(measure_generation(problem))

    return folder, measure_each(folder, work, measure, _summary, start, seconds, say)


def _summary(rows: Sequence[records.Row]) -> str:
    parts = []
    for row in rows:
        name = f"{row.provider} {row.variant}"
        if row.status != "ok":
            parts.append(f"{name} {row.status}: {row.detail}")
        elif row.metric == "extra_mem_bytes" and row.median is not None:
            way = (row.provider, row.variant, "latency_ms")
            timed = [r for r in rows if (r.provider, r.variant, r.metric) == way]
            parts.append(f"{name} {_rate(timed)}, {row.median / MIB:.0f} MiB")
    return ", ".join(parts)


def _rate(timed: Sequence[records.Row]) -> str:
    first, *_, last = sorted(timed, key=lambda row: row.seqlen_k)
    assert first.median and last.median
    rate = last.batch * (last.seqlen_k - first.seqlen_k) / (last.median - first.median) * 1e3
    return f"prompt {first.median:.0f} ms, then {rate:.0f} tokens/s"
